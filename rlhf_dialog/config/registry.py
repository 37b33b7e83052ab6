"""Names in the YAML -> classes. Built-ins register exactly as a user's class does."""

from collections.abc import Callable
from typing import Any

from rlhf_dialog.errors import UserError, nearest

COLON = ":"  # of a reward's id: FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION, which `rewards.named_function` alone reads
Offers = dict[str, Callable[[], Any]]  # name -> what loads its class
OFFERED: dict[str, Offers] = {}  # by the kind of registry; `rlhf_dialog/__init__.py` fills it


class Registry:
    """Classes of one kind by name.

    >>> RewardFactory.register("Politeness", Politeness)      # or, as a decorator:
    >>> @RewardFactory.register("Politeness")
    """

    def __init__(self, kind: str):
        self.kind = kind
        self.classes: dict[str, Any] = {}

    def register(self, name: str, cls: Any = None) -> Any:
        """Register `cls` under `name`; without `cls`, return a class decorator. A later class replaces an earlier one."""
        if cls is None:
            return lambda decorated: self.register(name, decorated)
        self.classes[name] = cls
        return cls

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
