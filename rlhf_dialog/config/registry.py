"""Names in the YAML -> classes. Built-ins register exactly as a user's class does."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.found_files import is_below

Offers = dict[str, Callable[[], Any]]  # name -> what loads its class
OFFERED: dict[str, Offers] = {}  # by the kind of registry; `rlhf_dialog/__init__.py` fills it


@dataclass(frozen=True)
class AccessDeclaration:
    """What the arguments of a class may reach. files: those that name a file, which must lie in the folder that was found;
    names: values of these that are no files; other: arguments -> which of them lead out, with the reason
    """

    files: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    other: Callable[[dict[str, Any]], dict[str, str]] = lambda args: {}


def leads_out(path: str, folder: Path) -> str:
    """Why a path may not be read for a file in `folder` that was found: it, or a file in it, lies elsewhere, also by a link."""
    target = Path(path).expanduser()
    is_inside = all(is_below(each, folder) for each in chain([target], target.rglob("*")))
    return "" if is_inside else f"{path[:100]!r} is not in {folder}"


class Registry:
    """Classes of one kind by name.

    >>> RewardFactory.register("Politeness", Politeness)      # or, as a decorator:
    >>> @RewardFactory.register("Politeness")
    """

    def __init__(self, kind: str):
        self.kind = kind
        self.classes: dict[str, Any] = {}
        self._reach: dict[str, AccessDeclaration] = {}

    def register(self, name: str, cls: Any = None, reach: AccessDeclaration | None = None) -> Any:
        """Register `cls` under `name`; without `cls`, return a class decorator. A later class replaces an earlier one.

        `reach` says which of its arguments lead out of a folder that was found (`AccessDeclaration`); without it, all may.
        """
        if cls is None:
            return lambda decorated: self.register(name, decorated, reach)
        self.classes[name] = cls
        self._reach.pop(name, None)
        if reach is not None:
            self._reach[name] = reach
        return cls

    def reaches_out(self, name: str, args: dict[str, Any], folder: Path) -> dict[str, str]:
        """Why a file in `folder` that was found may not have this class built: argument -> reason; empty where it may.

        A class says it itself (`reaches_out(args)`, not inherited), or with `reach`. One that does not say counts as reaching
        everything. Empty for an unknown name, which `create` refuses.
        """
        cls = self.find(name)
        if cls is None:
            return {}
        if "reaches_out" in vars(cls):
            return dict(cls.reaches_out(args))
        declaration = self._reach.get(name)
        if declaration is None:
            return {"id": f"{name} does not say what its arguments may reach"}
        files = {key: args.get(key) for key in declaration.files if args.get(key) not in declaration.names}
        outside = {f"args.{key}": leads_out(value, folder) for key, value in files.items() if isinstance(value, str)}
        return {key: why for key, why in (outside | declaration.other(args)).items() if why}

    def names(self) -> list[str]:
        """What is registered or offered, sorted."""
        return sorted({*self.classes, *OFFERED.get(self.kind, {})})

    def find(self, name: str) -> Any:
        """The class of this name, which is loaded now where it is only offered; None when there is none."""
        offered = OFFERED.get(self.kind, {})
        if name not in self.classes and name in offered:
            self.classes[name] = offered[name]()
        return self.classes.get(name)

    def problem(self, name: str, args: dict[str, Any]) -> str | None:
        """What is wrong with `name` and `args`, or None; builds nothing."""
        if self.find(name) is None:
            names = self.names()
            known = ", ".join(names) or "none"
            return (
                f"unknown {self.kind} '{name}'{nearest(name, names) or '.'} Known: {known}. "
                "Register a class of your own in a file that you name with --register FILE, or in train_ppo.py."
            )
        import inspect  # every start of the program loads this file, and few ask for a signature

        signature = inspect.signature(self.classes[name])
        try:
            signature.bind(**args)
        except TypeError as error:
            unknown = [str(key) for key in args if key not in signature.parameters]
            hint = nearest(unknown[0], signature.parameters) if unknown else ""
            return f"wrong arguments for {name}: {error}{hint or '.'} It takes {name}{signature}."
        return None

    def create(self, name: str, args: dict[str, Any]) -> Any:
        """Build the class `name` with `args`. Raises UserError for an unknown name or wrong arguments."""
        if problem := self.problem(name, args):
            raise UserError(problem)
        return self.classes[name](**args)


RewardFactory = Registry("reward")
VecInfoFactory = Registry("vec-info")
MetricFactory = Registry("metric")  # functions on finished dialogues that return one number for each
EnvironmentFactory = Registry("environment")  # `environments.base.Environment` has the contract
BaselineFactory = Registry("baseline")  # `environments.base.Baseline` has the contract
ModelFactory = Registry("network")  # `models.network` has the contract


def refuse(path: Path, key: str, registry: Registry, name: str, args: dict[str, Any], remedy: str = "") -> None:
    """The gate in front of what a file at `path` that was found has built under `key`: an environment, a policy, a network.

    Raises UserError where the arguments of the class lead out of the file's folder; remedy: another way than --trust_config.
    """
    found = {f"{key}.{each}": why for each, why in registry.reaches_out(name, args, path.absolute().parent).items()}
    if found:
        raise UserError(refusal(path, found) + remedy)


def refusal(path: Path, found: dict[str, str]) -> str:
    """The sentence for keys (key -> reason) that are not used."""
    keys = "; ".join(f"{key}: {why}" for key, why in found.items())
    return (
        f"{path} was found, not named by you, so it is read as data only, and these keys are not used: {keys}. If you trust the "
        "file, allow them with --trust_config"
    )
