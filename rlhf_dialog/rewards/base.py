"""The base class of rewards, which read finished dialogues and return one number for each. Text only, no tensors."""

import math
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.errors import as_reward_error

Purpose = Literal["rollout", "validation", "evaluation"]
DEVIATION = "_std"  # a metric of a reward: logged as `reward/<name>_std`, beside the mean in `reward/<name>`


class NoScore(float):
    """A missing score that says why: NaN, which `on_reward_error: skip` leaves out like None, with a reason for the ledger.

    >>> NoScore("the server did not answer").why
    'the server did not answer'
    """

    why: str

    def __new__(cls, why: str) -> "NoScore":
        score = super().__new__(cls, math.nan)
        score.why = why
        return score


class BaseReward:
    """A reward on whole responses.

    Subclass it, register it under a name, and use that name in the YAML; `args` there become the arguments of `__init__`.

    >>> @RewardFactory.register("Politeness")
    ... class Politeness(BaseReward):
    ...     def __init__(self, word: str = "please"):
    ...         self.word = word
    ...
    ...     def __call__(self, dialogues):
    ...         return [float(self.word in dialogue.response.lower()) for dialogue in dialogues]

    Most rewards define only `__call__`; the other methods are for rewards that hold models, other rewards, or numbers that change
    during training. A reward with `children` calls `super()` where it overrides one of them. docs/REWARDS.md has examples.
    """

    needs: tuple[str, ...] = ()  # "reference", "act" or both: what every prompt must have; checked before training
    uses_device: bool = False  # True: it keeps the GPU or all cores busy, so it does not run beside the models
    # True: `ref_model` and `kl_*` among its arguments in the YAML are the run's keys of those names
    lifts_kl: bool = False
    # around each call: brings its models to the device
    at_work: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def name(self) -> str:
        """The name of the reward in logs and tables: `reward/<name>`."""
        return type(self).__name__.lower()

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """Return one finite number for each dialogue, in their order.

        A rollout calls it once, with the dialogues of this process in the order of the prompts; the responses to one prompt are
        neighbours and share `meta["group"]`, its number in the rollout. `meta["dialogue"]` is the number in the data. Compare
        dialogues only within a prompt, so that scores do not depend on the number of processes. A validation passes its replies
        on rank 0 only; before training it also passes two references. Without `uses_device` the call is made in a thread.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__(self, dialogues) -> list[float]")

    def score_available(self, dialogues: list[Dialogue]) -> Sequence[float | None]:
        """As `__call__`, but with None for a dialogue without a score; called under `on_reward_error: skip`.

        Override it when the reward can fail for some dialogues and not for others (a server). None and NaN from `__call__`
        also count as no score; `NoScore("...")` in place of None says why in `ledger.jsonl`.
        """
        return self(dialogues)

    def check_prompts(self, prompts: list[Dialogue], where: str = "") -> None:
        """Raises UserError when prompts (of `where`) lack what this reward reads; by default the references and acts it `needs`.

        Called before training and before an audit.
        """
        for need in self.needs:
            if missing := sum(getattr(prompt, need) is None for prompt in prompts):
                what = (
                    f"{missing} of {len(prompts)} prompts{where} have no {need}, but the reward '{self.name}' needs it"
                )
                raise UserError(f"env.args.data_path: {what}; use data that has it, or another reward_class")

    # -- its parts

    def weighted_parts(self) -> "dict[str, Part]":
        """For a weighted sum of rewards, its parts by their names in logs and tables; empty for any other reward."""
        return {}

    def children(self) -> "list[BaseReward]":
        """The rewards that this one calls for scores: by default the parts of a weighted sum, else none."""
        return [part.reward for part in self.weighted_parts().values()]

    def frozen_models(self) -> dict[str, Any]:
        """The models (`torch.nn.Module`) that this reward holds and does not train, by name, without its children's.

        They are moved to the device, belong to the identity of the run, and are placed as `intent_ds_config` says. The method is
        called often: return the same objects, and quickly.
        """
        return {}

    @classmethod
    def model_paths(cls, args: dict[str, Any]) -> dict[str, str]:
        """The folder or Hub name of each model that a reward with these YAML arguments will load, including its parts' models.

        Called before anything is loaded, for the memory forecast; `args` are not checked yet. The keys are the names in
        `frozen_models`.
        """
        return {}

    def move_to(self, device: str) -> Self:
        """Move its models and those of its children to `device`."""
        for module in self.frozen_models().values():
            module.to(device)
        for child in self.children():
            child.move_to(device)
        return self

    # -- during a run

    def begin_scoring(self, purpose: Purpose, iteration: int) -> None:
        """Called before each scoring, in the main thread, with purpose and iteration (from 1); on all ranks for a rollout.

        A validation has the `iteration` of the rollout before it (0: the check before training). An evaluation
        (`scripts/evaluate.py`) has iteration 0. By default the call is passed on to the children.
        """
        for name, child in self._inside().items():
            with as_reward_error(name, type(child)):
                child.begin_scoring(purpose, iteration)

    def metrics(self) -> dict[str, float]:
        """Further numbers of this reward, asked for after each rollout on all ranks and logged as `reward/<name>/<key>`.

        With several processes, the mean weighted by the number of episodes of each is logged. By default these are the numbers
        of the children, as `<child's name>/<key>`.
        """
        numbers: dict[str, float] = {}
        for name, child in self._inside().items():
            with as_reward_error(name, type(child)):
                numbers |= {metric_name(name, key): value for key, value in child.metrics().items()}
        return numbers

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint must hold so that the reward continues unchanged after a resume; JSON, with text as keys.

        It is taken from rank 0 and loaded on all ranks, so a state that affects scores must be the same on all of them. By
        default it holds the states of the children, by their names.
        """
        states = {}
        for name, child in self._inside().items():
            with as_reward_error(name, type(child)):
                if state := child.state_dict():
                    states[name] = state
        return states

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; not called when the checkpoint has no state."""
        for name, child in self._inside().items():
            if name in state:
                with as_reward_error(name, type(child)):
                    child.load_state_dict(state[name])

    def _inside(self) -> "dict[str, BaseReward]":
        """The children by unique names."""
        rewards = {name: part.reward for name, part in self.weighted_parts().items()}
        for child in self.children():
            if all(child is not other for other in rewards.values()):
                rewards[free_name(child.name, rewards)] = child
        return rewards


@dataclass
class Part:
    """A reward and its weight in the sum."""

    weight: float
    reward: BaseReward


def metric_name(name: str, key: str) -> str:
    """`<name>/<key>`: under which name the metric `key` of the reward `name` is logged; `<name>_std` for `DEVIATION`."""
    return f"{name}{key}" if key == DEVIATION else f"{name}/{key}"


def walk(reward: BaseReward) -> Iterator[BaseReward]:
    """The reward, its children, their children and so on; each once."""
    seen: set[int] = set()
    todo = [reward]
    while todo:
        current = todo.pop()
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            todo += current.children()[::-1]


def models_inside(reward: BaseReward) -> dict[str, tuple[BaseReward, Any]]:
    """The frozen models of a reward and of all rewards inside of it, each once, with the reward that holds it."""
    models: dict[str, tuple[BaseReward, Any]] = {}
    for one in walk(reward):
        for name, module in one.frozen_models().items():
            if all(module is not other for _, other in models.values()):
                models[free_name(name, models)] = one, module
    return models


def needs_device(reward: BaseReward) -> bool:
    """Whether the reward, or one inside of it, uses the device: it sets `uses_device` or holds a model."""
    return any(one.uses_device or one.frozen_models() for one in walk(reward))


READS_REFERENCE = " (reads the reference)"  # behind the name of a row that such a reward has chosen


def reads_reference(reward: BaseReward) -> bool:
    """Whether the reward, or one inside of it, reads the reference or its act, which no policy sees."""
    return any(one.needs for one in walk(reward))


def free_name(name: str, taken: Container[str]) -> str:
    """`name`, or `name_2`, `name_3` ... where it is taken."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


ACTS = {1: "inform", 2: "question", 3: "directive", 4: "commissive"}  # DailyDialog's numbers


def reference_lists(dialogues: list[Dialogue], reward: str) -> list[list[str]]:
    """All references of each dialogue. Raises UserError when one has none."""
    _check_present([dialogue.reference for dialogue in dialogues], "a reference reply", reward)
    return [dialogue.references or [dialogue.reference or ""] for dialogue in dialogues]


def acts(dialogues: list[Dialogue], reward: str) -> list[int]:
    """The act of each dialogue, 1 to 4. Raises UserError when one has none or another number."""
    numbers = [dialogue.act for dialogue in dialogues]
    _check_present(numbers, "the act of the reference", reward)
    if wrong := [act for act in numbers if act not in ACTS]:
        names = ", ".join(f"{number} {act}" for number, act in ACTS.items())
        raise UserError(f"reward '{reward}': the data has act {wrong[0]!r}; DailyDialog's acts are {names}")
    return [act for act in numbers if act is not None]


def _check_present(values: list[Any], what: str, reward: str) -> None:
    if missing := sum(value is None for value in values):
        raise UserError(
            f"reward '{reward}' needs {what} for every prompt; {missing} of {len(values)} dialogues have none "
            f"(the first is number {values.index(None)}). Use data that has it, or another reward."
        )
