"""Shared by all commands: help text generated from the settings, logging, and exit codes instead of tracebacks."""

import atexit
import functools
import inspect
import logging
import os
import platform
import re
import select
import shutil
import signal
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TextIO, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from rich.table import Table

from rlhf_dialog.atomic_files import disk_errors_as_user_errors, is_special, replace_text, sync_folder
from rlhf_dialog.config.checks import OneOf
from rlhf_dialog.config.problems import walk
from rlhf_dialog.errors import INTERNAL_ERROR, RunStopped, SignalExit, UserError
from rlhf_dialog.terminal import Console, message, visible

logger = logging.getLogger(__name__)
TRUST_REMOTE_CODE = "let the agent's folder run its own code, with all your permissions"
INTERRUPTED, BROKEN_PIPE = 130, 141
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)


def program() -> str:
    """The command line before the arguments: `rlhf-dialog train`, or `python train_ppo.py`."""
    name = sys.argv[0]
    return f"python {name}" if name.endswith(".py") else name


def exit_on_sigterm() -> None:
    """Make SIGTERM, SIGHUP, SIGUSR1 and SIGQUIT unwind the program and exit with code 128 + number, unless they are ignored."""
    if threading.current_thread() is threading.main_thread():
        for signum in ENDING:
            if signal.getsignal(signum) is not signal.SIG_IGN:  # as set by nohup
                signal.signal(signum, _leave)


def _leave(signum: int, _: object) -> NoReturn:
    raise SignalExit(128 + signum)


@dataclass
class Ending:
    """How a command ended."""

    code: int = 0


@contextmanager
def exit_code(debug: bool, folders: Sequence[Path] = ()) -> Iterator[Ending]:
    """The ending of the block, which may set a code; an exception becomes its code, after one message on stderr.

    2 is a UserError, 3 a RunStopped or a GPU without memory, 130 Ctrl-C, 141 a standard output that nobody reads any more (no
    message), and 70 any other exception, whose traceback goes to error.log in the first of `folders` that is there then.
    """
    ending = Ending()
    try:
        yield ending
        if sys.stdout:
            sys.stdout.flush()
    except RunStopped as error:
        ending.code = _end(error.exit_code, f"error: {error}", debug)
    except KeyboardInterrupt:
        ending.code = _end(INTERRUPTED, "interrupted")
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            ending.code = BROKEN_PIPE
        elif "torch" in sys.modules and (text := _out_of_memory(error)):
            ending.code = _end(RunStopped.exit_code, f"error: {text}", debug)
        elif isinstance(error, UserError):
            ending.code = _end(error.exit_code, f"error: {error}", debug)
        else:
            words = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            path = _leave_traceback(folders)
            where = f"the traceback is in {path}" if path else "--debug shows the traceback"
            ending.code = _end(INTERNAL_ERROR, f"internal error, please report: {words}; {where}", debug)
    finally:
        atexit.unregister(_stop_at_ctrl_c)
        atexit.register(_stop_at_ctrl_c)  # before what libraries, imported meanwhile, do at the exit


def _stop_at_ctrl_c() -> None:
    """While Python exits, Ctrl-C ends the process at once: what it interrupts would show a traceback."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as set by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _out_of_memory(error: Exception) -> str:
    """What a full GPU's exception says, and what helps; empty for any other."""
    from rlhf_dialog.models.part_sizes import describe_full_gpu, lacks_memory

    if not lacks_memory(error):
        return ""
    remedy = "close other programs that use it, lower the batch size, or choose a smaller model or device: cpu"
    return f"{describe_full_gpu(error)}; {remedy}"


def _end(code: int, text: str, debug: bool = False) -> int:
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed, or there is none
        if debug:
            sys.stderr.write(message(traceback.format_exc()))
        sys.stderr.write(f"{message(text)}\n")
    return code


def _nobody_reads() -> bool:
    """Whether the reader of standard output has gone; what is left to write is then dropped."""
    with suppress(OSError, ValueError, AttributeError):
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if poll.poll(0):  # an error or a hang-up, which are always reported
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return True
    return False


def _leave_traceback(folders: Sequence[Path]) -> Path | None:
    """Write the traceback of the exception that is being handled; returns the file, None when no place can be written."""
    text = visible(traceback.format_exc()).encode("utf-8", "backslashreplace").decode()
    rank = os.environ.get("RANK", "0")
    places = [folder / "error.log" for folder in folders if folder.is_dir() and rank == "0"]  # not of other ranks
    for path in [*places, Path("rlhf_dialog_error.log" if rank == "0" else f"rlhf_dialog_error_{rank}.log")]:
        with suppress(OSError):
            replace_text(path, text)
            return path.absolute()
    return None


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, with the level before warnings and errors, and control characters made visible."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        text = message(super().format(record))
        return text if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {text}"


def set_up_logging() -> None:
    """INFO from rlhf_dialog, WARNING from everything else, on stderr. A second call changes nothing."""
    root = logging.getLogger()
    if not any(isinstance(handler, _StderrHandler) for handler in root.handlers):
        root.addHandler(_StderrHandler())
    root.setLevel(logging.WARNING)
    logging.getLogger("rlhf_dialog").setLevel(logging.INFO)


@contextmanager
def new_folder(output: Path | str) -> Iterator[Path]:
    """A hidden folder next to `output` to write to: renamed to `output` if the block succeeds, removed if it fails.

    What a kill left of it is removed. Raises UserError when `output` is not empty or cannot be written.
    """
    target = Path(output).expanduser().absolute()
    if not target.is_dir() and (target.exists() or target.is_symlink()):
        raise UserError(f"output: '{output}' is a file; choose a folder")
    if target.is_dir() and any(target.iterdir()):
        raise UserError(f"output: '{output}' is not empty; choose another folder, or remove it")
    staging = target.with_name(f".{target.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"output: '{output}' cannot be created: {error}") from error
    try:
        with disk_errors_as_user_errors(target):
            yield staging
            sync_folder(staging)
            if target.is_dir():
                target.rmdir()
            staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_output(name: str, path: Path, text: str) -> None:
    """Raises UserError when the file of the option `--name` cannot be written, or is a device or a pipe."""
    path = path.absolute()
    above = next((parent for parent in path.parents if parent.exists()), path)  # "/" has none
    if path.is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
        raise UserError(f"--{name}: '{text}' cannot be written; name a file in a folder that you may write to")
    if is_special(path):
        raise UserError(f"--{name}: '{text}' is not a regular file; name a file, which may be a new one")


def check_seed(seed: int) -> None:
    """Raises UserError for a seed that NumPy or PyTorch would refuse."""
    if not 0 <= seed < 2**32:
        raise UserError(f"--seed: found {seed}, wanted 0 to {2**32 - 1}")


def check_device(device: str) -> None:
    """Raises UserError for a device that is not there; `cuda` becomes that of this process."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,4})?", device):
        raise UserError(f"--device: found '{device}', wanted auto, cpu or cuda")
    if device.startswith("cuda"):
        from rlhf_dialog.models.device import choose_device

        choose_device(device, "--device ")


def versions(*packages: str) -> dict[str, str]:
    """The installed version of each package, and of Python."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}}


@dataclass(frozen=True)
class KeyRow:
    """One key of a settings class, as shown in the help text and the documentation."""

    group: str
    key: str
    kind: str  # e.g. `int >= 1`
    default: str  # YAML; `required` when there is none
    meaning: str


def key_rows(schema: type[BaseModel]) -> Iterator[KeyRow]:
    """Every described key of `schema`, grouped by the class that defines it (its docstring); `schema` itself first."""
    described = [(key, field) for key, field in walk(schema) if field.description]
    for cls in schema.__mro__:
        annotations = inspect.get_annotations(cls)
        for key, field in described:
            is_group = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            if key.split(".")[0] in annotations and not is_group:
                title = (inspect.getdoc(cls) or cls.__name__).splitlines()[0].rstrip(".")
                yield KeyRow(title, key, _kind(field), _default(schema, key, field), field.description)


def show_help(schema: type[BaseModel], usage: str) -> None:
    """Print `usage` and a table of every key with its type, default and meaning."""
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=140)
    console.print(usage)
    rows = list(key_rows(schema))
    for group in dict.fromkeys(row.group for row in rows):
        console.print(f"\n{group}", style="bold")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, min_width=26)
        table.add_column(max_width=24, min_width=16)
        table.add_column(max_width=24, min_width=16)
        table.add_column()
        for row in rows:
            if row.group == group:
                table.add_row(f"  --{row.key}", row.kind, row.default, row.meaning)
        console.print(table)


def _kind(field: Any) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [(item, name) for item in field.metadata for name in signs if hasattr(item, name)]
    limits = [f"{signs[name]} {getattr(item, name)}" for item, name in bounds]
    choices = [" | ".join(item.values) for item in field.metadata if isinstance(item, OneOf)]
    return " ".join([*(choices or [_type_name(field.annotation)]), ", ".join(limits)]).strip()


def _type_name(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _type_name(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(_type_name(part) for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) is list:
        return f"list of {_type_name(get_args(annotation)[0])}"
    name = getattr(annotation, "__name__", "")
    return {"str": "text", "bool": "true | false", "dict": "mapping", "ClassConfig": "mapping"}.get(name, name)


def _default(schema: type[BaseModel], key: str, field: Any) -> str:
    """The default as YAML; for a nested key, the value in the default of its group."""
    group, *names = key.split(".")
    outer = schema.model_fields[group]
    if names and not outer.is_required():
        value = functools.reduce(getattr, names, outer.get_default(call_default_factory=True))
    elif field.is_required():
        return "required"
    else:
        value = field.get_default(call_default_factory=True)
    return yaml.safe_dump(value, default_flow_style=True).strip().removesuffix("...").strip()
