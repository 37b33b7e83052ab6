"""Rewards out of rewards: the weighted sum of several, and the breakdown of any reward into its parts."""

import logging
import math
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

from rlhf_dialog.dialogue import Dialogue
from rlhf_dialog.errors import RunStopped, UserError, nearest
from rlhf_dialog.registry import RewardFactory
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.limit import Aside, stop_after

logger = logging.getLogger(__name__)
PART_KEYS = ("id", "weight", "args")


class RewardError(UserError):
    """A reward raised or returned something unusable; `__cause__` is the reward's own exception, if it raised."""


@dataclass(frozen=True)
class ScoringRules:
    """What becomes of a dialogue without a score, and of a reward without an end; by default the first stops the run."""

    skip_unscored: bool = False  # True: None, NaN and inf become NaN in Scores
    timeout_s: float | None = None  # for all parts together


STOPPING = ScoringRules()


@dataclass
class PartScore:
    """What one part of a reward says of N dialogues."""

    raw: list[float]  # N values; NaN where there is no score
    weighted: list[float]  # N values times the part's weight
    seconds: float  # wall time of the part


@dataclass
class Scores:
    """What a reward says of N dialogues.

    >>> Scores(total=[0.6], parts={"intent": PartScore([1.0], [0.5], 0.02), "meteor": PartScore([0.2], [0.1], 0.001)})
    """

    total: list[float]  # N values, the sum of the weighted parts; NaN where a part gave no score
    parts: dict[str, PartScore]

    def of(self, rows: list[int]) -> "Scores":
        """The scores of the dialogues with these numbers alone."""
        parts = {
            name: PartScore([part.raw[i] for i in rows], [part.weighted[i] for i in rows], part.seconds)
            for name, part in self.parts.items()
        }
        return Scores([self.total[i] for i in rows], parts)


@dataclass
class Part:
    """A reward and its weight in the sum."""

    weight: float
    reward: BaseReward


@RewardFactory.register("CompositeReward")
class CompositeReward(BaseReward):
    """The weighted sum of several rewards, as the YAML lists them.

    >>> CompositeReward(parts=[{"id": "Meteor"}, {"id": "LengthMatch", "weight": 0.5, "args": {}}])

    A part of weight 0 is computed and logged, but not paid. Two parts of the same name become `x` and `x_2`.
    Raises UserError that names every faulty `reward_class.args.parts[i]`.
    """

    name = "composite"

    @classmethod
    def reaches_out(cls, args: dict[str, Any]) -> dict[str, str]:
        """What its parts do, and theirs."""
        parts = args.get("parts")
        usable = [] if not isinstance(parts, list) or any(map(_problems, parts)) else parts
        return {
            f"args.parts[{i}].{key}": why
            for i, part in enumerate(usable)
            for key, why in reaches_out(*_id_and_args(part)).items()
        }

    def __init__(self, parts: list[dict[str, Any]]):
        if not isinstance(parts, list) or not parts:
            raise UserError("reward_class.args.parts: give a list of one or more {id, weight, args}")
        problems = [f"reward_class.args.parts[{i}]: {text}" for i, part in enumerate(parts) for text in _problems(part)]
        if problems:
            raise UserError("\n".join(problems))
        self._set_parts([Part(float(part.get("weight", 1.0)), _build_part(i, part)) for i, part in enumerate(parts)])

    def _set_parts(self, parts: list[Part]) -> None:
        """Take built rewards; a subclass calls this in the place of `super().__init__`."""
        self.parts: dict[str, Part] = {}
        for part in parts:
            self.parts[_free_name(part.reward.name, self.parts)] = part
        self.needs = tuple(dict.fromkeys(need for part in parts for need in part.reward.needs))
        self.uses_device = any(part.reward.uses_device for part in parts)

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """The weighted sum for each dialogue. Raises RewardError when a part raises or returns no usable numbers."""
        return self.score(dialogues).total

    def score(self, dialogues: list[Dialogue], rules: ScoringRules = STOPPING) -> Scores:
        """The weighted sums and their parts. Raises RewardError, see `__call__`, and RewardTimeout."""
        return _score(self.parts, dialogues, rules)

    def to(self, device: str) -> "CompositeReward":
        """Move the model of every part to `device`."""
        for part in self.parts.values():
            part.reward.to(device)
        return self


def scored(reward: BaseReward, dialogues: list[Dialogue], rules: ScoringRules = STOPPING) -> Scores:
    """The scores of any reward with their parts; a reward that is no composite is one part of weight 1.

    Raises RewardError when the reward raises, or returns anything but one finite number for each dialogue (where the rules
    skip: one number or None, and the scores hold NaN for what is not finite), and RewardTimeout after `rules.timeout_s`.
    """
    if isinstance(reward, CompositeReward):
        return reward.score(dialogues, rules)
    return _score(_parts_of(reward), dialogues, rules)


def scored_beside(
    reward: BaseReward, dialogues: list[Dialogue], rules: ScoringRules = STOPPING
) -> Callable[[], Scores]:
    """Begin to score, as `scored` does, while the caller computes something else; the function gives the scores, or raises.

    Parts that leave the device alone (METEOR, a server, most rewards in Python) begin at once in a thread; the others
    (`uses_device`) run when the scores are asked for. With a time limit all of them do.
    """
    parts = _parts_of(reward)
    aside = {name: part for name, part in parts.items() if not part.reward.uses_device}
    if rules.timeout_s is not None or not aside:
        return lambda: scored(reward, dialogues, rules)
    work = Aside(lambda: _part_scores(aside, dialogues, rules))

    def scores() -> Scores:
        rest = {name: part for name, part in parts.items() if name not in aside}
        found = _part_scores(rest, dialogues, rules) | work.result()
        return _total({name: found[name] for name in parts}, len(dialogues))

    return scores


def _parts_of(reward: BaseReward) -> dict[str, Part]:
    return reward.parts if isinstance(reward, CompositeReward) else {reward.name: Part(1.0, reward)}


def build_reward(name: str, args: dict[str, Any]) -> BaseReward:
    """The reward of `reward_class: {id: name, args: args}`.

    Raises UserError for an unknown name or wrong arguments, RewardError when the class's own constructor raises.
    """
    if problem := RewardFactory.problem(name, args):
        raise UserError(problem)
    cls = RewardFactory.classes[name]
    try:
        reward = cls(**args)
    except UserError:
        raise
    except Exception as error:
        raise _raised(name, cls, error) from error
    if not isinstance(reward, BaseReward):
        raise UserError(f"reward '{name}': its class {cls.__name__} must be a subclass of BaseReward")
    return reward


def reaches_out(name: str, args: dict[str, Any]) -> dict[str, str]:
    """`BaseReward.reaches_out` of the class of this name, which must define it itself: a subclass may do more than its base.

    Nothing for a name or arguments that `build_reward` refuses.
    """
    if RewardFactory.problem(name, args):
        return {}
    cls: Any = RewardFactory.classes[name]
    return (cls if "reaches_out" in vars(cls) else BaseReward).reaches_out(args)


def _score(parts: dict[str, Part], dialogues: list[Dialogue], rules: ScoringRules) -> Scores:
    return _total(_part_scores(parts, dialogues, rules), len(dialogues))


def _part_scores(parts: dict[str, Part], dialogues: list[Dialogue], rules: ScoringRules) -> dict[str, PartScore]:
    scores, begin = {}, time.perf_counter()
    for name, part in parts.items():
        start = time.perf_counter()
        left = None if rules.timeout_s is None else rules.timeout_s - (start - begin)
        raw = _values(name, part.reward, dialogues, replace(rules, timeout_s=left))
        seconds = time.perf_counter() - start
        scores[name] = PartScore(raw, [part.weight * value for value in raw], seconds)
    return scores


def _total(scores: dict[str, PartScore], count: int) -> Scores:
    return Scores([_sum([score.weighted[i] for score in scores.values()]) for i in range(count)], scores)


def _sum(values: list[float]) -> float:
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # beyond the largest number, or inf - inf
        return math.inf


def _values(name: str, reward: BaseReward, dialogues: list[Dialogue], rules: ScoringRules) -> list[float]:
    """One number for each dialogue; NaN for no score where the rules skip it."""
    if isinstance(reward, CompositeReward):
        return reward.score(dialogues, rules).total
    call = reward.score_available if rules.skip_unscored else reward
    try:
        values = stop_after(rules.timeout_s, name, lambda: _as_list(call(dialogues)))
    except (UserError, RunStopped):
        raise
    except Exception as error:
        raise _raised(name, type(reward), error) from error
    if not isinstance(values, (list, tuple)):
        raise RewardError(
            f"reward '{name}' returned {type(values).__name__}; it must return a list of one number per dialogue"
        )
    if len(values) != len(dialogues):
        raise RewardError(f"reward '{name}' returned {len(values)} values for {len(dialogues)} dialogues")
    if rules.skip_unscored:
        values = _without_unscored(name, values)
    for value, dialogue, i in zip(values, dialogues, range(len(values)), strict=True):
        if not (isinstance(value, Real) and (rules.skip_unscored or math.isfinite(value))):
            kind = "which is not finite" if isinstance(value, Real) else "which is not a number"
            raise RewardError(
                f"reward '{name}' gave {value!r}, {kind}, for dialogue {i} with the response {dialogue.response!r}"
            )
    return [float(value) for value in values]


def _as_list(returned: Any) -> Any:
    return returned.tolist() if hasattr(returned, "tolist") else returned  # an array or tensor is welcome too


def _without_unscored(name: str, values: Sequence[Any]) -> list[Any]:
    """The values with NaN in the place of None and of what is not finite; the log says how many."""
    missing = [value is None or (isinstance(value, Real) and not math.isfinite(value)) for value in values]
    if any(missing):
        first = missing.index(True)
        logger.warning(
            "reward '%s' gave no score to %d of %d dialogues (the first is number %d: %r); they are left out",
            name,
            sum(missing),
            len(values),
            first,
            values[first],
        )
    return [math.nan if gone else value for gone, value in zip(missing, values, strict=True)]


def _raised(name: str, cls: type, error: Exception) -> RewardError:
    """Names the deepest frame in the file of the reward's class: the line that its author can mend."""
    frames = traceback.extract_tb(error.__traceback__)
    own_file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    own = [frame for frame in frames if own_file and Path(frame.filename).resolve() == Path(own_file).resolve()]
    frame = (own or frames)[-1]
    path = Path(frame.filename)
    place = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return RewardError(f"reward '{name}' raised {type(error).__name__}: {error} at {place}:{frame.lineno}")


def _problems(part: Any) -> list[str]:
    """Everything that is wrong with one entry of `parts`; nothing is built."""
    if not isinstance(part, dict):
        return [f"{part!r} must be a mapping with id, weight, args"]
    found = [f"unknown key '{key}'{nearest(str(key), PART_KEYS)}" for key in part if key not in PART_KEYS]
    if not is_finite(part.get("weight", 1.0)):
        found.append(f"weight {part['weight']!r} must be a finite number")
    args = part.get("args") or {}
    if not isinstance(args, dict):
        found.append(f"args {args!r} must be a mapping of the reward's arguments")
    elif "id" not in part:
        found.append(f"id is missing; known rewards: {', '.join(sorted(RewardFactory.classes))}")
    elif problem := RewardFactory.problem(str(part["id"]), args):
        found.append(problem)
    return found


def _id_and_args(part: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return str(part["id"]), part.get("args") or {}


def is_finite(value: Any) -> bool:
    """A finite number, or its text: PyYAML reads `1e-1` as text."""
    if isinstance(value, bool) or not isinstance(value, (Real, str)):
        return False
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


def _build_part(index: int, part: dict[str, Any]) -> BaseReward:
    place = f"reward_class.args.parts[{index}]"
    try:
        return build_reward(*_id_and_args(part))
    except UserError as error:
        text = str(error)
        inside = "reward_class.args" in text
        error.args = (text.replace("reward_class.args", f"{place}.args") if inside else f"{place}: {text}",)
        raise


def _free_name(name: str, taken: dict[str, Part]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free
