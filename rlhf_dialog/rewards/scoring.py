"""How rewards are called: their weighted parts in turn or beside other work, with checks of what each of them returns."""

import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import Any

from numpy.typing import NDArray

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.models.part_sizes import PartSizes
from rlhf_dialog.rewards.base import DEVIATION, BaseReward, NoScore, Part, Purpose, metric_name, needs_device, walk
from rlhf_dialog.rewards.errors import RewardError, as_reward_error, stop_after
from rlhf_dialog.user_code import BackgroundCall

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScoringRules:
    """What to do about a dialogue without a score, and a reward that takes too long; by default no score is an error."""

    skip_unscored: bool = False  # True: None, NaN and inf become NaN in Scores
    timeout_s: float | None = None  # for all parts together
    sizes: PartSizes = field(default_factory=PartSizes)  # dialogues at a time, where a GPU has no memory for all


STOPPING = ScoringRules()


@dataclass
class PartScore:
    """The scores of N dialogues by one part of a reward."""

    raw: list[float]  # N values; NaN where there is no score, as `NoScore` where the reason is known
    weighted: list[float]  # N values times the part's weight
    seconds: float  # wall time of the part
    weight: float = 1.0


@dataclass
class Scores:
    """The scores of N dialogues by a reward.

    >>> Scores(total=[0.6], parts={"intent": PartScore([1.0], [0.5], 0.02), "meteor": PartScore([0.2], [0.1], 0.001)})
    """

    total: list[float]  # N values, the sum of the weighted parts; NaN where a part gave no score
    parts: dict[str, PartScore]

    def select(self, rows: list[int]) -> "Scores":
        """The scores of only those dialogues that have these numbers."""
        parts = {
            name: replace(part, raw=[part.raw[i] for i in rows], weighted=[part.weighted[i] for i in rows])
            for name, part in self.parts.items()
        }
        return Scores([self.total[i] for i in rows], parts)


def score_dialogues(reward: BaseReward, dialogues: list[Dialogue], rules: ScoringRules = STOPPING) -> Scores:
    """The scores of any reward with their parts; a reward that is not a sum is a single part of weight 1.

    Raises RewardError when the reward raises, or returns anything but one finite number for each dialogue (under
    `rules.skip_unscored`: one number or None; the scores then hold NaN for what is not finite), and RewardTimeout after
    `rules.timeout_s`.
    """
    return _total(_part_scores(_parts_of(reward), dialogues, rules), len(dialogues))


def score_in_background(
    reward: BaseReward, dialogues: list[Dialogue], rules: ScoringRules = STOPPING
) -> Callable[[], Scores]:
    """Start scoring, as `score_dialogues` does, while the caller computes something else; call the result to get the scores.

    Parts that do not use the device (METEOR, a server, most rewards in Python) start at once in a thread; the others
    (`uses_device`, or frozen models) run when the result is called. With a time limit, all parts run then.
    """
    parts = _parts_of(reward)
    aside = {name: part for name, part in parts.items() if not needs_device(part.reward)}
    if rules.timeout_s is not None or not aside:
        return lambda: score_dialogues(reward, dialogues, rules)
    work = BackgroundCall(lambda: _part_scores(aside, dialogues, rules))

    def scores() -> Scores:
        rest = {name: part for name, part in parts.items() if name not in aside}
        found = _part_scores(rest, dialogues, rules) | work.result()
        return _total({name: found[name] for name in parts}, len(dialogues))

    return scores


@dataclass
class Scorer:
    """How a run calls its reward, and what it subtracts from the score of a truncated response."""

    reward: BaseReward
    rules: ScoringRules = STOPPING
    truncation_penalty: float = 0.0

    def begin(self, dialogues: list[Dialogue]) -> Callable[[], Scores]:
        """Start scoring while the caller computes something else, see `score_in_background`."""
        return score_in_background(self.reward, dialogues, self.rules)

    def score(self, dialogues: list[Dialogue]) -> Scores:
        """The scores of the dialogues, see `score_dialogues`."""
        return score_dialogues(self.reward, dialogues, self.rules)

    def subtract_truncation_penalty(self, totals: NDArray[Any], truncated: NDArray[Any]) -> NDArray[Any]:
        """`totals` (N,) less the penalty where `truncated` (N,), in float64: the score of rollouts and evaluations."""
        return totals - self.truncation_penalty * truncated


def begin_scoring(reward: BaseReward, purpose: Purpose, iteration: int) -> None:
    """Call `BaseReward.begin_scoring`, which announces what is scored next. Raises RewardError when it raises."""
    with as_reward_error(reward.name, type(reward)):
        reward.begin_scoring(purpose, iteration)


def metrics_of(reward: BaseReward) -> dict[str, float]:
    """The metrics of a reward as `<reward's name>/<key>`; those of a part of a sum have the part's name, not the sum's.

    Raises RewardError when the reward raises, or returns something that is not a number.
    """
    with as_reward_error(reward.name, type(reward)):
        values = {str(key): value for key, value in reward.metrics().items()}
    parts = reward.weighted_parts() if values else {}
    metrics: dict[str, float] = {}
    for key, value in values.items():
        if not isinstance(value, Real):
            raise RewardError(f"reward '{reward.name}': metrics() returned {value!r} for {key!r}; return a number")
        part = key.partition("/")[0] if "/" in key else key.removesuffix(DEVIATION)  # `x` in `x/loss` and in `x_std`
        metrics[key if part in parts and part != key else metric_name(reward.name, key)] = float(value)
    return metrics


def state_of(reward: BaseReward) -> dict[str, Any]:
    """The state of a reward for a checkpoint. Raises RewardError when the reward raises, or its state is not JSON."""
    with as_reward_error(reward.name, type(reward)):
        state = reward.state_dict()
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        remedy = "return numbers, text, lists and dicts"
        raise RewardError(f"reward '{reward.name}': state_dict() is not JSON ({error}); {remedy}") from error
    if not isinstance(state, dict):
        raise RewardError(f"reward '{reward.name}': state_dict() returned {type(state).__name__}; return a dict")
    return state


def load_state(reward: BaseReward, state: Any) -> None:
    """Load what `state_of` returned. Raises RewardError when the reward raises, TypeError for anything but a dict."""
    if not isinstance(state, dict):
        raise TypeError(f"the state of the reward is {type(state).__name__}, not a mapping")
    with as_reward_error(reward.name, type(reward)):
        reward.load_state_dict(state)


def _parts_of(reward: BaseReward) -> dict[str, Part]:
    return reward.weighted_parts() or {reward.name: Part(1.0, reward)}


def _part_scores(parts: dict[str, Part], dialogues: list[Dialogue], rules: ScoringRules) -> dict[str, PartScore]:
    scores, begin = {}, time.perf_counter()
    for name, part in parts.items():
        start = time.perf_counter()
        left = None if rules.timeout_s is None else rules.timeout_s - (start - begin)
        raw = _values(name, part.reward, dialogues, replace(rules, timeout_s=left))
        seconds = time.perf_counter() - start
        scores[name] = PartScore(raw, [part.weight * value for value in raw], seconds, part.weight)
    return scores


def _total(scores: dict[str, PartScore], count: int) -> Scores:
    return Scores([_sum_of(scores, i) for i in range(count)], scores)


def _sum_of(scores: dict[str, PartScore], row: int) -> float:
    """The sum of the weighted parts of a dialogue; where a part has a reason for its missing score, that reason."""
    for name, score in scores.items():
        if isinstance(missing := score.raw[row], NoScore):
            return NoScore(f"{name}: {missing.why}")
    try:
        return math.fsum(score.weighted[row] for score in scores.values())
    except (OverflowError, ValueError):  # beyond the largest number, or inf - inf
        return math.inf


def _values(name: str, reward: BaseReward, dialogues: list[Dialogue], rules: ScoringRules) -> list[float]:
    """One number for each dialogue; NaN for a missing score if the rules allow it."""
    if reward.weighted_parts():
        return score_dialogues(reward, dialogues, rules).total

    def call(some: list[Dialogue]) -> Any:
        found = (reward.score_available if rules.skip_unscored else reward)(some)
        return found.tolist() if hasattr(found, "tolist") else found  # an array or tensor is welcome too

    in_parts = partial(rules.sizes.in_parts, f"reward {name}", max(len(dialogues), 1), dialogues, call)
    with ExitStack() as stack, as_reward_error(name, type(reward)):
        for one in walk(reward):
            stack.enter_context(one.at_work())
        parts = stop_after(rules.timeout_s, name, in_parts)
        values: Any = parts[0] if len(parts) == 1 else [value for part in parts for value in part]
    who = f"reward '{name}'"
    if not isinstance(values, (list, tuple)):
        raise RewardError(f"{who} returned {type(values).__name__}; it must return a list of one number per dialogue")
    if len(values) != len(dialogues):
        raise RewardError(f"{who} returned {len(values)} values for {len(dialogues)} dialogues")
    if rules.skip_unscored:
        values = _without_unscored(name, values)
    for value, dialogue, i in zip(values, dialogues, range(len(values)), strict=True):
        if not (isinstance(value, Real) and (rules.skip_unscored or math.isfinite(value))):
            kind = "which is not finite" if isinstance(value, Real) else "which is not a number"
            raise RewardError(f"{who} gave {value!r}, {kind}, for dialogue {i} with the response {dialogue.response!r}")
    return [value if isinstance(value, NoScore) else float(value) for value in values]


def _without_unscored(name: str, values: Sequence[Any]) -> list[Any]:
    """The values with `NoScore` in place of None and of numbers that are not finite; logs how many."""
    missing = [value is None or (isinstance(value, Real) and not math.isfinite(value)) for value in values]
    if any(missing):
        text = "reward '%s' gave no score for %d of %d dialogues (the first is number %d: %r); they are left out"
        first = missing.index(True)
        logger.warning(text, name, sum(missing), len(values), first, values[first])
    return [_reason(value) if gone else value for gone, value in zip(missing, values, strict=True)]


def _reason(value: Any) -> NoScore:
    return value if isinstance(value, NoScore) else NoScore(f"gave {'no score' if value is None else repr(value)}")
