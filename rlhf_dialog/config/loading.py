"""YAML + command line -> typed settings. Every mistake is found before anything is loaded, all at once, with its key."""

import copy
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

import rlhf_dialog
from rlhf_dialog.atomic_files import is_special
from rlhf_dialog.config.problems import listed, sentences
from rlhf_dialog.config.registry import COLON, EnvironmentFactory, ModelFactory, RewardFactory, VecInfoFactory
from rlhf_dialog.config.schema import Config, Settings
from rlhf_dialog.config.synonyms import NO_EFFECT
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.yaml_files import parse_yaml, read_text

logger = logging.getLogger(__name__)
S = TypeVar("S", bound=Settings)
ENDS = ("max_iterations", "total_episodes", "total_time_steps")  # the keys that end a run, of which one is enough
KL_KEYS = ("ref_model", "kl_coef", "kl_target", "kl_rate", "kl_clip")


def find_config(name: str) -> Path:
    """The file for `--config name`: as given, in ./configs, next to the script, or shipped. Raises UserError if there is none."""
    beside = Path(sys.argv[0]).resolve().parent
    folders = (Path(), Path("configs"), beside, beside / "configs", shipped_folder("configs"))
    for path in (folder / name for folder in folders):
        if path.is_file():
            return path
    if is_special(Path(name)):
        raise UserError(f"config file '{name}' is not a regular file; write the settings to a file")
    ours = sorted(path.name for path in shipped_folder("configs").glob("*.yaml"))
    own = sorted({path.name for folder in (folders[1], folders[3]) for path in folder.glob("*.yaml")} - {*ours})
    here = f" configs/ contains: {', '.join(own)};" if own else ""
    advice = f"{nearest(name, [*own, *ours]) or ';'}{here} the files that the program ships are in {shipped_folder('configs')}"
    raise UserError(f"config file '{name}' not found{advice}")


def shipped_folder(folder: str) -> Path:
    """The folder `configs` or `ds_configs` that the program ships: in the installed package, next to it in a checkout."""
    package = Path(rlhf_dialog.__file__).parent
    inside = package / folder
    return inside if inside.is_dir() else package.parent / folder


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that the file holds. Raises UserError if it is unreadable, no YAML within limits, or not a mapping."""
    try:
        text = read_text(path)
        if re.search(r"^globals\s*:", text, re.MULTILINE):
            raise ValueError("a `globals:` block (Jinja variables) is not supported; write each value where it is used")
        raw = parse_yaml(text)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    except ValueError as error:
        raise UserError(f"{path}: cannot be read as YAML: {error}") from error
    if raw is None:
        return {}
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise UserError(f"{path}: must be a mapping (`key: value` lines), found {type(raw).__name__}")
    return raw


def override(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set the dotted `key` in the nested mapping; numbers in the key index lists (`reward_class.args.parts.0.weight`).

    Another `id` than the file's drops the `args` that the file has for its own class.
    """
    *parents, leaf = key.split(".")
    node: Any = raw
    for name in parents:
        if isinstance(node, list):
            node = node[_index(node, name, key)]
        else:
            if node.get(name) is None:
                node[name] = {}
            node = node[name]
        if not isinstance(node, dict | list):
            raise UserError(f"--{key}: '{name}' is {node!r}, which has no keys; give '{name}' a mapping first")
    if isinstance(node, list):
        node[_index(node, leaf, key)] = value
    else:
        if leaf == "id" and parents and node.get("id") not in (None, value):
            node.pop("args", None)
        node[leaf] = value


def override_all(raw: dict[str, Any], overrides: dict[str, Any]) -> None:
    """Set all dotted keys, ids first, since they may drop arguments."""
    for key in sorted(overrides, key=lambda key: not key.endswith(".id")):
        override(raw, key, overrides[key])


def _index(node: list[Any], name: str, key: str) -> int:
    if not name.isdecimal() or int(name) >= len(node):
        raise UserError(f"--{key}: '{name}' is not a position in a list of {len(node)}; use 0 to {len(node) - 1}")
    return int(name)


def load_settings(
    schema: type[S],
    path: Path | None,
    overrides: dict[str, Any] | None = None,
    no_effect: Mapping[str, str] = MappingProxyType({}),
) -> S:
    """Defaults < file < overrides, validated as `schema`. Raises one UserError that lists every mistake.

    no_effect: keys that are ignored, and why; one line of the log names each that is there
    """
    raw = read_yaml(path) if path else {}
    override_all(raw, overrides or {})
    for line in _drop_keys(raw, no_effect):
        logger.info("%s", line)
    return _validate(schema, raw, str(path or "arguments"), [])


def replace_keys(settings: S, values: dict[str, Any], source: str = "arguments") -> S:
    """The settings with new `values`, checked like a file; defaults that depend on them are recomputed.

    Raises UserError, which names the `source` of the values.
    """
    replaced = _validate(type(settings), settings.model_dump(exclude_unset=True) | values, source, [])
    replaced._folder = settings.source_folder
    return replaced


class RunKeys:
    """The keys of a run in a YAML file or a mapping, with overrides: read once, and checked as often as classes are registered.

    `check` asks no registered class, so that none has to be loaded, and `load` asks all of them. Both raise one UserError that
    lists every mistake.
    """

    def __init__(self, source: str | Path | Mapping[str, Any], overrides: dict[str, Any] | None = None):
        """A dotted key of a mapping may be a nested one."""
        self.path = None if isinstance(source, Mapping) else Path(source)
        self.raw: dict[str, Any] = {} if self.path is None else read_yaml(self.path)
        if isinstance(source, Mapping):
            if wrong := [key for key in source if not isinstance(key, str)]:
                raise UserError(f"the configuration: {wrong[0]!r} is no key; write keys as text, such as 'lr'")
            override_all(self.raw, copy.deepcopy(dict(source)))
        self.name = str(self.path or "the configuration")
        self.no_effect = _prepare_run(self.raw, overrides or {})

    def check(self, schema: type[S]) -> S:
        """The settings as far as the schema knows them."""
        return _validate(schema, self.raw, self.name, [], classes=False)

    def load(self) -> Config:
        """The configuration of a PPO run; the log names the keys that have no effect."""
        for line in self.no_effect:
            logger.info("%s", line)
        config = _validate(Config, self.raw, self.name, _lift_kl(self.raw))
        if self.path is None:
            return config
        config._folder = self.path.parent
        if config.experiment_name is not None:
            return config
        try:
            return replace_keys(config, {"experiment_name": self.path.stem}, self.name)
        except UserError as error:
            raise UserError(f"{error}; it is the name of the file, so set another with --experiment_name") from None


def load_config(source: str | Path | Mapping[str, Any], overrides: dict[str, Any] | None = None) -> Config:
    """The configuration of a PPO run, see `RunKeys`."""
    return RunKeys(source, overrides).load()


def _prepare_run(raw: dict[str, Any], overrides: dict[str, Any]) -> list[str]:
    """Override keys, and remove those that have no effect, with a line for each.

    An end of the run that is overridden replaces whatever ends it in the file.
    """
    if any(key in overrides for key in ENDS):
        for key in ENDS:
            raw.pop(key, None)
    override_all(raw, overrides)
    lines, guard = _drop_keys(raw, NO_EFFECT), raw.get("guard")
    if isinstance(guard, dict) and guard.get("judge") is None:
        del raw["guard"]
        lines.append("guard: has no effect without a judge; set guard.judge")
    return lines


def _drop_keys(raw: dict[str, Any], no_effect: Mapping[str, str]) -> list[str]:
    """Remove the keys that have no effect; returns a line for each."""
    keys = [key for key in raw if key in no_effect]
    for key in keys:
        del raw[key]
    return [f"{key}: has no effect here; {no_effect[key]}" for key in keys]


def reward_nodes(reward_class: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every `{id, args}` of a reward in the YAML, at every depth and in order, with its dotted key; aliased ones once.

    >>> [key for key, _ in reward_nodes({"id": "CompositeReward", "args": {"parts": [{"id": "Meteor", "args": {}}]}})]
    ['reward_class', 'reward_class.args.parts.0']
    """
    todo: list[tuple[str, Any]] = [("reward_class", reward_class)]
    seen: set[int] = set()
    while todo:
        key, node = todo.pop()
        if not isinstance(node, dict | list) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, dict) and isinstance(node.get("id"), str) and isinstance(node.get("args"), dict):
            yield key, node
        children = list(node.items() if isinstance(node, dict) else enumerate(node))
        todo += [(f"{key}.{name}", child) for name, child in reversed(children)]


def _lift_kl(raw: dict[str, Any]) -> list[str]:
    """Move a reward's KL arguments, at any depth, to the top-level keys of the same names; returns conflicts as problems.

    They are those of classes that set `lifts_kl`, or that are not registered yet.
    """
    problems, places = [], {key: f"{key}: found {value!r}" for key, value in raw.items()}
    if "reward_class" in raw:
        raw["reward_class"] = copy.deepcopy(raw["reward_class"])  # an alias elsewhere keeps them
    for place, node in reward_nodes(raw.get("reward_class")):
        cls = RewardFactory.classes.get(node["id"])
        lifts = getattr(cls, "lifts_kl", False) if cls else COLON not in node["id"]
        for key in [key for key in KL_KEYS if lifts and key in node["args"]]:
            value, where = node["args"].pop(key), f"{place}.args.{key}"
            if str(raw.setdefault(key, value)) != str(value):
                problems.append(f"{places[key]}, but {value!r} in {where}; remove one of them")
            places.setdefault(key, f"{where}: found {value!r}")
    return problems


def _validate(schema: type[S], raw: dict[str, Any], source: str, problems: list[str], classes: bool = True) -> S:
    settings = None
    try:
        settings = schema.model_validate(raw)
    except ValidationError as error:
        problems = problems + sentences(schema, error)
    problems = [*problems, *(_class_problems(raw) if classes else ())]
    if problems or settings is None:
        raise listed(source, problems)
    return settings


def _class_problems(raw: dict[str, Any]) -> Iterator[str]:
    registries = {"reward_class": RewardFactory, "vec_info_class": VecInfoFactory, "environment": EnvironmentFactory}
    registries |= dict.fromkeys(("model_class", "critic_class"), ModelFactory)
    for key, registry in registries.items():
        node = raw.get(key)
        is_empty = not registry.classes and registry is not ModelFactory  # which has no built-in classes
        if is_empty or not isinstance(node, dict) or not isinstance(node.get("id"), str):
            continue
        if key == "reward_class" and COLON in node["id"]:  # loading a configuration runs no code that it names
            continue
        args = node.get("args") or {}
        if isinstance(args, dict) and (problem := registry.problem(node["id"], args)):
            yield f"{key}: {problem}"


def dump_yaml(settings: Settings) -> str:
    """The resolved settings as YAML that loads again."""
    return yaml.safe_dump(settings.model_dump(), sort_keys=False, allow_unicode=True)


def read_overrides(arguments: Iterable[str]) -> dict[str, Any]:
    """`--key value --a.b=value` -> the values of dotted keys. Raises UserError.

    Values are read as YAML (`--reward_class.args "{intent_coef: 0}"`); a key without a value is true.
    """
    words, overrides = list(arguments), {}
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise UserError(f"'{word}': write arguments as --key value")
        key, equals, text = word[2:].partition("=")
        if not equals:
            text = words.pop(0) if words and not words[0].startswith("--") else "true"
        key = key.replace("-", "_")
        overrides[key] = read_value(key, text)
    return overrides


def read_value(key: str, text: str) -> Any:
    """The value of `--key text`: YAML, or else the text itself. Raises UserError for a list or mapping that is no YAML."""
    try:
        return parse_yaml(text)
    except ValueError:
        if text.strip().startswith(("{", "[")):
            raise UserError(f"--{key}: {text!r} is not valid YAML") from None
        return text
