"""Names in the YAML -> classes. Built-ins register exactly as a user's class does."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
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


@dataclass(frozen=True)
class Formula:
    """What the configuration knows of an advantage estimator or a loss, without loading it."""

    name: str  # in the YAML
    place: str = ""  # `module:function`; empty for one of the user's
    needs_critic: bool = False  # values (B, T), and a value loss
    # at least two responses to each prompt, side by side; where one has no score, its group is dropped
    needs_groups: bool = False
    paper: str = ""

    @property
    def num_responses_per_prompt(self) -> int:
        """The default of `num_responses_per_prompt`."""
        return 4 if self.needs_groups else 1


class FormulaRegistry(Registry):
    """Functions that training calls on tensors, with what each of them needs; the built-in ones are loaded when asked for.

    >>> @AdvantageFactory.register("best_of_group", needs_groups=True)
    """

    def __init__(self, kind: str, *built_in: Formula):
        super().__init__(kind)
        self.formulas = {one.name: one for one in built_in}

    def register(
        self,
        name: str,
        cls: Any = None,
        *,
        needs_critic: bool = False,
        needs_groups: bool = False,
        paper: str = "",
    ) -> Any:
        """Register a function under `name`; without one, return a decorator."""
        formula = Formula(name, "", needs_critic, needs_groups, paper)

        def add(function: Any) -> Any:
            self.formulas[name] = formula
            return Registry.register(self, name, function)

        return add if cls is None else add(cls)

    def find(self, name: str) -> Any:
        """The function of this name, which is loaded now where it is built in; None when there is none."""
        if name not in self.classes and name in self.formulas:
            module, _, function = self.formulas[name].place.partition(":")
            self.classes[name] = getattr(import_module(module), function)
        return self.classes.get(name)

    def names_with(self, needs: str) -> list[str]:
        """Those for which `needs` (`needs_critic`, `needs_groups`) holds, in the order of the table."""
        return [name for name, formula in self.formulas.items() if getattr(formula, needs)]


PPO = "rlhf_dialog.training.ppo"
# (rewards, penalties, values, response_mask, credit) -> advantages, returns
AdvantageFactory = FormulaRegistry(
    "advantage estimator",
    Formula("gae", f"{PPO}:gae_advantages", needs_critic=True, paper="Schulman et al. 2015, arXiv 1506.02438"),
    Formula("grpo", f"{PPO}:grpo_advantages", needs_groups=True, paper="Shao et al. 2024, arXiv 2402.03300"),
    Formula("rloo", f"{PPO}:rloo_advantages", needs_groups=True, paper="Ahmadian et al. 2024, arXiv 2402.14740"),
    Formula("reinforce_pp", f"{PPO}:reinforce_pp_advantages", paper="Hu et al. 2025, arXiv 2501.03262"),
)
# (LossInputs) -> the loss, a scalar, and scalars for the log, sums over the tokens divided by `num_tokens`
LossFactory = FormulaRegistry(
    "loss",
    Formula("clip", f"{PPO}:clip_loss", paper="Schulman et al. 2017, arXiv 1707.06347"),
    Formula("cispo", f"{PPO}:cispo_loss", paper="MiniMax 2025, arXiv 2506.13585"),
)
RewardFactory = Registry("reward")
VecInfoFactory = Registry("vec-info")
MetricFactory = Registry("metric")  # functions on finished dialogues that return one number for each
EnvironmentFactory = Registry("environment")  # `environments.base.Environment` has the contract
BaselineFactory = Registry("baseline")  # `environments.base.Baseline` has the contract
ModelFactory = Registry("network")  # `models.network` has the contract
