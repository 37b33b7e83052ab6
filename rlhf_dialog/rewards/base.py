"""The base class of rewards, which read finished dialogues and return one number for each, their errors and arguments."""

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from rlhf_dialog import user_code
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import count_missing
from rlhf_dialog.errors import UserError

Purpose = Literal["rollout", "validation", "evaluation"]
ARGS = "reward_class.args"
DEVIATION = "_std"  # a metric of a reward: logged as `reward/<name>_std`, beside the mean in `reward/<name>`


class RewardError(UserError):
    """A reward raised or returned something unusable; `__cause__` is the reward's own exception, if it raised."""


def as_reward_error(name: str, cls: type) -> AbstractContextManager[None]:
    """`as_user_error` for the reward `name` (class `cls`), with a RewardError."""
    return user_code.as_user_error(f"reward '{name}'", cls, RewardError)


class NoScore(float):
    """A missing score that says why: NaN, which `on_reward_error: skip` leaves out like None, with a reason for the ledger.

    `words`: what a judge has written, for the ledger.

    >>> NoScore("the server did not answer").why
    'the server did not answer'
    """

    why: str
    words: str

    def __new__(cls, why: str, words: str = "") -> "NoScore":
        score = super().__new__(cls, math.nan)
        score.why, score.words = why, words
        return score


class JudgedScore(float):
    """A score with the `words` of the judge that gave it, for the ledger."""

    words: str

    def __new__(cls, score: float, words: str) -> "JudgedScore":
        made = super().__new__(cls, score)
        made.words = words
        return made


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

    Most rewards define only `__call__`; docs/REWARDS.md has examples of the others. A reward with `children` calls `super()`
    where it overrides one of them.
    """

    needs: tuple[str, ...] = ()  # "reference", "act" or both: what every prompt must have; checked before training
    uses_device: bool = False  # True: it keeps the GPU or all cores busy, so it does not run beside the models
    # True: `ref_model` and `kl_*` among its arguments in the YAML are the run's keys of those names
    lifts_kl: bool = False
    # True: it compares the replies to one prompt with each other, so only a rollout can ask it
    compares: bool = False
    # its arguments that name a model, folder or Hub name, each with the model's name in `frozen_models`; `key[]`: those in a list
    model_args: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # of a weighted sum of rewards, its parts by their names in logs and tables
    weighted_parts: "Mapping[str, Part]" = MappingProxyType({})
    _work_device: str | None = None  # where `at_work` brings its models

    @property
    def name(self) -> str:
        """The name of the reward in logs and tables: `reward/<name>`."""
        return type(self).__name__.lower()

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """Return one finite number for each dialogue, in their order.

        A rollout calls it once, with the dialogues of this process in the order of the prompts; the responses to one prompt are
        neighbours and share `meta["group"]`. A validation calls it on rank 0 alone. Without `uses_device` that is in a thread.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__(self, dialogues) -> list[float]")

    def score_available(self, dialogues: list[Dialogue]) -> Sequence[float | None]:
        """As `__call__`, but with None for a dialogue without a score; called under `on_reward_error: skip`.

        Override it when the reward can fail for some dialogues and not for others (a server). NaN counts as no score, too;
        `NoScore("...")` in place of None says why in `ledger.jsonl`.
        """
        return self(dialogues)

    def check_prompts(self, prompts: Sequence[Dialogue], where: str = "") -> None:
        """Raises UserError when prompts (of `where`) lack what this reward reads; by default the references and acts it `needs`.

        Called before training and before an audit. The prompts of large data are read from its files one by one.
        """
        for need in self.needs:
            if missing := count_missing(prompts, need):
                what = (
                    f"{missing} of {len(prompts)} prompts{where} have no {need}, but the reward '{self.name}' needs it"
                )
                raise UserError(f"env.args.data_path: {what}; use data that has it, or another reward_class")

    # -- its parts

    def children(self) -> "list[BaseReward]":
        """The rewards that this one calls for scores: by default the parts of a weighted sum, else none."""
        return [part.reward for part in self.weighted_parts.values()]

    def frozen_models(self) -> dict[str, Any]:
        """The models (`torch.nn.Module`) that this reward holds and does not train, by name, without its children's.

        They are moved to the device, and belong to the identity of the run. Called often: return the same objects, and quickly.
        """
        return {}

    @classmethod
    def model_paths(cls, args: dict[str, Any]) -> dict[str, str]:
        """The folder or Hub name of each model that a reward with these unchecked YAML arguments will load, by the names of
        `frozen_models`; its parts' models too. Called before anything is loaded, for the memory forecast. By default the values
        of `model_args`."""
        return {name: args[key] for key, name in cls.model_args.items() if args.get(key)}

    def in_float32(self) -> Self:
        """Compute its models and those of its children in float32, so that a table does not depend on the processor that made it.
        By default they compute in it anyway."""
        for child in self.children():
            child.in_float32()
        return self

    def move_to(self, device: str) -> Self:
        """Move its models and those of its children to `device`."""
        for module in self.frozen_models().values():
            module.to(device)
        for child in self.children():
            child.move_to(device)
        return self

    def work_on(self, device: str) -> None:
        """From now on let its own models, which wait on the CPU, be on `device` during each call."""
        self._work_device = device

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Surrounds each call: its own models are where they work (`work_on`)."""
        away: list[Any] = []
        if self._work_device is not None:
            away = [x for x in self.frozen_models().values() if next(x.parameters()).device.type == "cpu"]
        for module in away:
            module.to(self._work_device)
        try:
            yield
        finally:
            for module in away:
                module.to("cpu")

    # -- during a run

    def begin_run(self, folder: Path, seed: int, rank: int) -> None:
        """Called once in a training, before anything is scored: the run's folder, which may not be there yet."""
        for child in self.children():
            child.begin_run(folder, seed, rank)

    def begin_scoring(self, purpose: Purpose, iteration: int) -> None:
        """Called before each scoring, in the main thread, with purpose and iteration (from 1); on all ranks for a rollout.

        A validation has the `iteration` of the rollout before it, the check before training and an evaluation have 0.
        """
        for name, child in self._inside().items():
            with as_reward_error(name, type(child)):
                child.begin_scoring(purpose, iteration)

    def metrics(self) -> dict[str, float]:
        """Further numbers of this reward, asked for after each rollout on all ranks and logged as `reward/<name>/<key>`: of
        several processes the mean, weighted by episodes. By default those of the children, as `<child's name>/<key>`."""
        numbers: dict[str, float] = {}
        for name, child in self._inside().items():
            with as_reward_error(name, type(child)):
                numbers |= {metric_name(name, key): value for key, value in child.metrics().items()}
        return numbers

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint must hold so that the reward continues unchanged after a resume: JSON, with text as keys,
        taken from rank 0 and loaded on all ranks. By default it holds the states of the children, by their names."""
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
        rewards = {name: part.reward for name, part in self.weighted_parts.items()}
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


def runs_user_code(reward: BaseReward) -> bool:
    """Whether the reward, or one inside of it, is not of this package, or calls a function of the user's."""
    classes = [getattr(one, "function", type(one)) for one in walk(reward)]
    return any(map(user_code.is_of_users, classes))


def check_alone(reward: BaseReward, place: str) -> None:
    """Raises UserError where the reward, or one inside of it, compares replies, but is asked about single ones at `place`."""
    for one in walk(reward):
        if one.compares:
            what = f"the reward '{one.name}' ranks the replies to one prompt, and here is only one"
            raise UserError(
                f"{place}: {what}; use one that scores single replies, such as JudgeReward with mode: score"
            )


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


def reference_lists(dialogues: list[Dialogue], reward: BaseReward) -> list[list[str]]:
    """All references of each dialogue, for a reward that `needs` them. Raises UserError when one has none."""
    reward.check_prompts(dialogues)
    return [dialogue.references or [dialogue.reference or ""] for dialogue in dialogues]


# -- the arguments in the YAML: each function returns the value, and raises UserError for one that cannot work


def is_finite(value: Any) -> bool:
    """A finite number, or its text: PyYAML reads `1e-1` as text."""
    if isinstance(value, bool) or not isinstance(value, (Real, str)):
        return False
    try:
        return math.isfinite(float(value))
    except (ValueError, OverflowError):
        return False


def number(
    key: str, value: Any, wanted: str = "a finite number", fits: Callable[[float], bool] = lambda _: True
) -> float:
    """A finite number, or its text, that `fits` what is `wanted`."""
    if not (is_finite(value) and fits(float(value))):
        raise UserError(f"{ARGS}.{key}: {value!r:.100} must be {wanted}")
    return float(value)


def whole(key: str, value: Any, least: int = 1) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{ARGS}.{key}: {value!r:.100} must be a whole number, at least {least}")
    return value


def choice(key: str, value: Any, choices: Sequence[str]) -> str:
    """One of the choices."""
    if value not in choices:
        raise UserError(f"{ARGS}.{key}: {value!r:.100} is not one of {', '.join(choices)}")
    return value
