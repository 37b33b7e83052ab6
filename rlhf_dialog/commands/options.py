"""One way to build a command: a typed class says its options, from which come flags, help and checks, and `run_command` runs it.

    class GreetOptions(Options):
        description = "What the command does."

        agent: Path = option("folder of the agent")
        seed: int = option("another number gives other dialogues; default 0", 0)

    main = partial(run_command, GreetOptions, run)

What is heavy (torch, transformers, datasets, trl) is imported by `run`, after its checks: help and mistakes need none of it.
"""

import argparse
import inspect
import logging
import os
import re
import runpy
import sys
import textwrap
import types
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from rlhf_dialog.commands import command_line
from rlhf_dialog.config.loading import RunKeys, dump_yaml, find_config, load_settings, read_overrides
from rlhf_dialog.config.schema import Config
from rlhf_dialog.config.settings import AsksPrecision, Precision, Settings
from rlhf_dialog.errors import ASKED_TO_END, UserError

logger = logging.getLogger(__name__)
LAST = ("device", "precision", "debug")  # of the options of a command
Form = Literal["named", "positional", "repeated", "bare"]


def option(
    meaning: str,
    default: Any = MISSING,
    metavar: str | None = None,
    choices: tuple[str, ...] | None = None,
    form: Form = "named",
    rivals: str | None = None,
) -> Any:
    """A field of `Options`, which must be given if it has no default; a flag (`bool`) is off, and `X | None` is None.

    form: repeated is given again for each value, in place of all values behind one name; bare may have no value, which is true.
    rivals: of options with the same word only one can be given.
    """
    metadata = {"meaning": meaning, "metavar": metavar, "choices": choices, "form": form, "rivals": rivals}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a command, which do not change; each subclass becomes a dataclass. `description` begins its help."""

    description: ClassVar[str | None] = None

    debug: bool = option("show the traceback of an error", False)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, annotation in inspect.get_annotations(cls).items():
            declared = getattr(cls, name, None)
            if isinstance(declared, Field) and declared.default is MISSING and "meaning" in declared.metadata:
                is_tuple = declared.metadata["form"] == "repeated"
                usual = {bool: False} | ({annotation: None} if type(None) in get_args(annotation) else {})
                declared.default = () if is_tuple else usual.get(annotation, MISSING)
        dataclass(frozen=True, kw_only=True)(cls)


class DeviceOption(Options):
    device: str = option("auto, cpu or cuda (default: auto, which is cuda if available)", "auto")

    def on_device(self) -> Self:
        """The same options, with the device that `auto` is here. Raises UserError for one that is not there."""
        from rlhf_dialog.models.device import choose_device

        return cast(Self, replace(cast(Any, self), device=choose_device(self.device, "--device ")))


class PrecisionOption(AsksPrecision, DeviceOption):
    precision: str = option("of replies (default: auto, as the agent's run)", "auto", choices=get_args(Precision))


S = TypeVar("S", bound=Settings)


class YamlOptions(Options, Generic[S]):
    """A command with `--config FILE`: each key of the YAML's schema is an option too, such as `--lr 1e-5` and `--a.b value`.

    keys: what was given of them. folders: the first that is there gets the traceback of a bug; a run adds its own.
    """

    schema: ClassVar[type[Settings]]
    usage: ClassVar[str] = "{program} --config FILE [--key value ...]"
    example: ClassVar[str | None] = None  # a file for --config, where it must be given

    config: str | None = option(
        "YAML file; searched as given, in configs/, in the folder of the script, and among the shipped files",
        metavar="FILE",
    )
    print_config: bool = option("print the resolved settings as YAML and exit")
    keys: dict[str, Any] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)

    @cached_property
    def settings(self) -> S:
        """The checked settings. Raises UserError with every mistake."""
        if self.config is None and self.example:
            raise UserError(f"--config is missing; for example: {command_line.program()} --config {self.example}")
        path = find_config(self.config) if self.config else None
        if path:
            logger.info("config: %s", path)
        return self.load(path)

    def load(self, path: Path | None) -> S:
        """The settings of the file and the keys. Raises UserError with every mistake."""
        return cast(S, load_settings(self.schema, path, self.keys))


class RunOptions(YamlOptions[S]):
    """A command that begins a run in a folder of its own, or goes on with it."""

    resume: str = option(
        "continue the run in the run folder from its newest checkpoint; auto: begin a run if there is none yet, for a scheduler "
        "that starts the same command again and again",
        "false",
        metavar="[auto]",
        form="bare",
    )
    overwrite: bool = option("replace the run in the run folder")

    def resumes(self) -> bool | Literal["auto"]:
        """Whether the run goes on. Raises UserError for another word, and for --overwrite beside it."""
        if self.resume not in ("true", "false", "auto"):
            raise UserError(f"--resume: found '{self.resume}'; write --resume or --resume auto")
        if self.resume != "false" and self.overwrite:
            raise UserError("--overwrite replaces the run, --resume goes on with it; give one of them")
        return "auto" if self.resume == "auto" else self.resume == "true"


AnyOptions = TypeVar("AnyOptions", bound=Options)


def run_command(
    kind: type[AnyOptions],
    run: Callable[[AnyOptions], int | None],
    argv: list[str] | None = None,
    name: str | None = None,
    about: str | None = None,
) -> int:
    """Parse the words (`sys.argv[1:]` by default), run the command, and return the exit code of how it ended.

    `run` may return a code of its own. `name` is what the help calls the program, if not as it was called,
    `about` what it says where the class has no description.
    """
    words = sys.argv[1:] if argv is None else argv
    command_line.set_up_logging()
    command_line.exit_on_sigterm()
    folders: list[Path] = []
    with command_line.exit_code("--debug" in words, folders) as ending:
        is_yaml = issubclass(kind, YamlOptions)
        options = parse_yaml_options(kind, words, folders) if is_yaml else parse_options(kind, words, name, about)
        if options is not None:
            ending.code = run(options) or 0
    return ending.code


def parse_options(
    kind: type[AnyOptions], words: list[str], name: str | None = None, about: str | None = None
) -> AnyOptions:
    """The options that the words give. Ends the program with code 2 and a usage line for words that make none."""
    text = kind.description or about
    parser = Parser(prog=name, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    types_of, rivals = get_type_hints(kind), dict[str, Any]()
    for option_field in option_fields(kind):
        metadata = option_field.metadata
        place = parser if metadata["rivals"] is None else rivals.get(metadata["rivals"])
        if place is None:
            place = rivals[metadata["rivals"]] = parser.add_mutually_exclusive_group()
        word = option_field.name if metadata["form"] == "positional" else f"--{option_field.name}"
        place.add_argument(word, **_argparse_arguments(option_field, types_of[option_field.name]))
    arguments: dict[str, Any] = vars(parser.parse_args(words))
    lists = {key: tuple(value) for key, value in arguments.items() if isinstance(value, list)}
    return kind(**arguments | lists)


def option_fields(kind: type[Options]) -> list[Field[Any]]:
    """The fields that are options; those that many commands have are the last."""
    options = [one for one in fields(kind) if "meaning" in one.metadata]
    return sorted(options, key=lambda one: one.name in LAST and LAST.index(one.name) + 1)


def _argparse_arguments(option_field: Field[Any], annotation: Any) -> dict[str, Any]:
    """How argparse reads the option."""
    metadata = option_field.metadata
    arguments: dict[str, Any] = {"help": metadata["meaning"].replace("%", "%%")}
    if annotation is bool:
        return arguments | {"action": "store_true"}
    inner = annotation
    if get_origin(annotation) in (Union, types.UnionType, tuple):
        inner = next(one for one in get_args(annotation) if one not in (type(None), Ellipsis))
    # no shell expands the ~ of `--output=~/x`
    read = (lambda word: Path(os.path.expanduser(word))) if inner is Path else inner
    arguments |= {"metavar": metadata["metavar"], "choices": metadata["choices"], "type": read}
    if get_origin(annotation) is tuple:
        arguments |= {"action": "append"} if metadata["form"] == "repeated" else {"nargs": "+"}
    if metadata["form"] == "positional":
        return arguments
    if metadata["form"] == "bare":
        arguments |= {"nargs": "?", "const": "true"}
    required = option_field.default is MISSING
    default = None if required else option_field.default
    return arguments | {"required": required, "default": [] if metadata["form"] == "repeated" else default}


class Parser(argparse.ArgumentParser):
    """Reads `--max-prompts` as `--max_prompts`, which is how options are spelled here."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's own."""
        spelled = [
            re.sub(r"^--[a-z][\w-]*(?==|\Z)", lambda name: f"--{name[0][2:].replace('-', '_')}", word) for word in args
        ]
        return super().parse_known_args(spelled, namespace)


def parse_yaml_options(kind: type[AnyOptions], words: list[str], folders: list[Path]) -> AnyOptions | None:
    """The options that the words give; None where they only asked for --help or --print_config, which is printed."""
    assert issubclass(kind, YamlOptions)
    parser = Parser(add_help=False, allow_abbrev=False, exit_on_error=False)
    types_of = get_type_hints(kind)
    for one in option_fields(kind):
        parser.add_argument(f"--{one.name}", **_argparse_arguments(one, types_of[one.name]))
    parser.add_argument("--help", action="store_true")
    try:
        found, others = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from None
    values: dict[str, Any] = vars(found)
    if values.pop("help"):
        lines = [f"{(kind.description or '').strip()}\n\nusage: {kind.usage.format(program=command_line.program())}"]
        rows = [(one.name, one.metadata["metavar"], one.metadata["meaning"]) for one in option_fields(kind)]
        for name, metavar, meaning in [*rows, ("help", None, "show this help and exit")]:
            head = f"  --{name} {metavar or ''}".ljust(17)
            lines.append(textwrap.fill(f"{head} {meaning}", 130, subsequent_indent=" " * 18))
        command_line.show_help(kind.schema, "\n".join(lines))
        return None
    options = kind(**values | {"keys": read_overrides(others), "folders": folders})
    if options.print_config:
        sys.stdout.write(dump_yaml(options.settings))
        return None
    return options


REGISTER = "Python file that registers classes of your own (rewards, policies ...), run first; for example train_ppo.py"


def register(path: str) -> None:
    """Run a file of the user's for the classes that it registers. Raises UserError when it fails."""
    if not Path(path).is_file():
        raise UserError(f"--register {path}: is not a regular file; name a Python file that registers your classes")
    words, sys.argv = sys.argv, [path]
    try:
        module = types.ModuleType("registered")
        module.__dict__.update(runpy.run_path(path, run_name=module.__name__))
        sys.modules[module.__name__] = module  # so that a class of it has a file
    except ASKED_TO_END:
        raise
    except BaseException as error:
        raise UserError(f"--register {path}: {type(error).__name__}: {error}") from error
    finally:
        sys.argv = words


def check_run_keys(keys: RunKeys, own_file: str | None) -> Config:
    """What the schema knows of a run; own_file: registers classes. Raises UserError for all mistakes, the reward's among them."""
    try:
        return keys.check(Config)
    except UserError:
        import rlhf_dialog.rewards  # noqa: F401  the built-in rewards register themselves

        if own_file:
            register(own_file)
        keys.load()
        return keys.check(Config)  # of the estimators and losses that the file has registered
