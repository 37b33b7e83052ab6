"""How any reward is asked: its weighted parts in turn or beside other work, and checks of what each of them returns."""

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
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.rewards.base import BaseReward, Part
from rlhf_dialog.rewards.limit import Aside, stop_after

logger = logging.getLogger(__name__)


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


def scored(reward: BaseReward, dialogues: list[Dialogue], rules: ScoringRules = STOPPING) -> Scores:
    """The scores of any reward with their parts; a reward that is no composite is one part of weight 1.

    Raises RewardError when the reward raises, or returns anything but one finite number for each dialogue (where the rules
    skip: one number or None, and the scores hold NaN for what is not finite), and RewardTimeout after `rules.timeout_s`.
    """
    return _total(_part_scores(_parts_of(reward), dialogues, rules), len(dialogues))


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


@dataclass
class Scorer:
    """How a run asks its reward. `truncation_penalty` is what a rollout takes off the score of a truncated response."""

    reward: BaseReward
    rules: ScoringRules = STOPPING
    truncation_penalty: float = 0.0

    def begin(self, dialogues: list[Dialogue]) -> Callable[[], Scores]:
        """Begin to score while the caller computes something else, see `scored_beside`."""
        return scored_beside(self.reward, dialogues, self.rules)

    def score(self, dialogues: list[Dialogue]) -> Scores:
        """The scores of the dialogues, see `scored`."""
        return scored(self.reward, dialogues, self.rules)


def _parts_of(reward: BaseReward) -> dict[str, Part]:
    return reward.weighted_parts() or {reward.name: Part(1.0, reward)}


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
    if reward.weighted_parts():
        return scored(reward, dialogues, rules).total
    call = reward.score_available if rules.skip_unscored else reward
    try:
        values = stop_after(rules.timeout_s, name, lambda: _as_list(call(dialogues)))
    except (UserError, RunStopped):
        raise
    except Exception as error:
        raise raised(name, type(reward), error) from error
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


def raised(name: str, cls: type, error: Exception) -> RewardError:
    """The error that names the deepest frame in the file of the reward's class: the line that its author can mend."""
    frames = traceback.extract_tb(error.__traceback__)
    own_file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    own = [frame for frame in frames if own_file and Path(frame.filename).resolve() == Path(own_file).resolve()]
    frame = (own or frames)[-1]
    path = Path(frame.filename)
    place = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return RewardError(f"reward '{name}' raised {type(error).__name__}: {error} at {place}:{frame.lineno}")
