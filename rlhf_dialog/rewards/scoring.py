"""How rewards are called: their weighted parts in turn or beside other work, with checks of what each of them returns."""

import json
import logging
import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog import user_code
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.part_sizes import PartSizes
from rlhf_dialog.rewards.base import (
    DEVIATION,
    BaseReward,
    JudgedScore,
    NoScore,
    Part,
    Purpose,
    RewardError,
    as_reward_error,
    metric_name,
    needs_device,
    runs_user_code,
    walk,
)
from rlhf_dialog.rewards.function_reward import FunctionReward

logger = logging.getLogger(__name__)
T = TypeVar("T")


class RewardTimeout(RunStopped):
    """A reward took longer than `reward_timeout_s`; its note holds the stacks of all threads."""


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


@dataclass(frozen=True)
class Scorer:
    """A reward, and how it is called; by default a dialogue without a score is an error."""

    reward: BaseReward
    skip_unscored: bool = False  # True: None, NaN and inf become NaN in Scores
    timeout_s: float | None = None  # for all parts together
    truncation_penalty: float = 0.0
    overlong_penalty_tokens: int = 0  # see `truncation_penalties`
    max_new_tokens: int = 0
    sizes: PartSizes = field(default_factory=PartSizes)  # dialogues at a time, where a GPU has no memory for all
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # calls of user code

    def score(self, dialogues: list[Dialogue]) -> Scores:
        """The scores of the dialogues with their parts; a reward that is not a sum is a single part of weight 1.

        Raises RewardError when the reward raises, or returns anything but one finite number for each dialogue (under
        `skip_unscored`: one number or None), and RewardTimeout after `timeout_s`.
        """
        parts = self._parts()
        with self._around(parts):
            return _add_up(self._score_parts(parts, dialogues), len(dialogues))

    def begin(self, dialogues: list[Dialogue]) -> Callable[[], Scores]:
        """Start `score` while the caller computes something else; call the result to get the scores.

        Parts that do not use the device (METEOR, a server, most rewards in Python) start at once in a thread; the others
        (`uses_device`, or frozen models) run when the result is called. With a time limit, all parts run then.
        """
        parts = self._parts()
        aside = {name: part for name, part in parts.items() if not needs_device(part.reward)}
        if self.timeout_s is not None or not aside:
            return lambda: self.score(dialogues)

        def score_aside() -> dict[str, PartScore]:
            with self._around(aside):
                return self._score_parts(aside, dialogues)

        work = user_code.BackgroundCall(score_aside)

        def scores() -> Scores:
            rest = {name: part for name, part in parts.items() if name not in aside}
            if any(runs_user_code(part.reward) for part in rest.values()):
                work.result()  # one after the other: what surrounds the calls is of the whole process
            with self._around(rest):
                found = self._score_parts(rest, dialogues)
            found |= work.result()
            return _add_up({name: found[name] for name in parts}, len(dialogues))

        return scores

    def subtract_truncation_penalty(
        self, totals: NDArray[Any], truncated: NDArray[Any], lengths: NDArray[Any]
    ) -> NDArray[Any]:
        """`totals` (N,) less `truncation_penalties` (N,), in float64: the score of rollouts and evaluations."""
        return totals - truncation_penalties(self, truncated, lengths)

    def _around(self, parts: dict[str, Part]) -> AbstractContextManager[None]:
        return self.around() if any(runs_user_code(part.reward) for part in parts.values()) else nullcontext()

    def _parts(self) -> dict[str, Part]:
        return dict(self.reward.weighted_parts) or {self.reward.name: Part(1.0, self.reward)}

    def _score_parts(self, parts: dict[str, Part], dialogues: list[Dialogue]) -> dict[str, PartScore]:
        scores, begin = {}, time.perf_counter()
        awaited: dict[str, Future[Any]] = {}
        try:
            for name, part in parts.items():
                if isinstance(part.reward, FunctionReward) and part.reward.is_async:
                    with as_reward_error(name, FunctionReward):
                        awaited[name] = part.reward.begin(dialogues)
            for name, part in parts.items():
                start = time.perf_counter()
                left = None if self.timeout_s is None else self.timeout_s - (start - begin)
                raw = self._ask(name, part.reward, dialogues, left, awaited.get(name))
                seconds = time.perf_counter() - start
                scores[name] = PartScore(raw, [part.weight * value for value in raw], seconds, part.weight)
        finally:
            for future in awaited.values():
                future.cancel()  # where another part has failed
        return scores

    def _ask(
        self,
        name: str,
        reward: BaseReward,
        dialogues: list[Dialogue],
        seconds: float | None,
        begun: Future[Any] | None,
    ) -> list[float]:
        """The reward's number for each dialogue, of an `async def` that has `begun`; `NoScore` where one is missing, and
        those are skipped."""
        who = f"reward '{name}'"
        if reward.weighted_parts:
            return replace(self, reward=reward, timeout_s=seconds, around=nullcontext).score(dialogues).total

        def call(some: list[Dialogue]) -> Any:
            if begun is not None and len(some) == len(dialogues):  # a full GPU gets fewer, which are asked anew
                found = begun.result()
            else:
                found = (reward.score_available if self.skip_unscored else reward)(some)
            return found.tolist() if hasattr(found, "tolist") else found  # an array or tensor is welcome too

        with ExitStack() as stack, as_reward_error(name, type(reward)):
            for one in walk(reward):
                stack.enter_context(one.at_work())
            work = partial(self.sizes.in_parts, f"reward {name}", max(len(dialogues), 1), dialogues, call)
            parts = work() if seconds is None else _stop_after(seconds, name, work)
            values: Any = parts[0] if len(parts) == 1 else [value for part in parts for value in part]
        if not isinstance(values, (list, tuple)):
            raise RewardError(
                f"{who} returned {type(values).__name__}; it must return a list of one number per dialogue"
            )
        if len(values) != len(dialogues):
            raise RewardError(f"{who} returned {len(values)} values for {len(dialogues)} dialogues")
        scores: list[float] = []
        missing = []
        for i, (value, dialogue) in enumerate(zip(values, dialogues, strict=True)):
            is_number = isinstance(value, Real)
            if is_number and math.isfinite(value):
                scores.append(value if isinstance(value, JudgedScore) else float(value))
            elif self.skip_unscored and (is_number or value is None):
                missing.append(i)
                why = "no score" if value is None else value
                scores.append(value if isinstance(value, NoScore) else NoScore(f"gave {why}"))
            else:
                kind = "which is not finite" if is_number else "which is not a number"
                raise RewardError(
                    f"{who} gave {value!r:.200}, {kind}, for dialogue {i} with the response {dialogue.response!r}"
                )
        if missing:
            text = "%s gave no score for %d of %d dialogues (the first is number %d: %r); they are left out"
            logger.warning(text, who, len(missing), len(values), missing[0], values[missing[0]])
        return scores


class PenaltyKeys(Protocol):
    """The keys of the YAML that shape the penalty on long replies."""

    @property
    def truncation_penalty(self) -> float: ...
    @property
    def overlong_penalty_tokens(self) -> int: ...
    @property
    def max_new_tokens(self) -> int: ...


def penalty_keys(keys: PenaltyKeys) -> tuple[float, int, int]:
    """The three keys in the order of `Scorer`."""
    return keys.truncation_penalty, keys.overlong_penalty_tokens, keys.max_new_tokens


def truncation_penalties(keys: PenaltyKeys, truncated: NDArray[Any], lengths: NDArray[Any]) -> NDArray[Any]:
    """The penalty (N,) of replies that are `truncated` (N,).

    With `overlong_penalty_tokens` k instead by their `lengths` (N,) in tokens, with the end token: it grows linearly over the
    last k of `max_new_tokens` (Yu et al. 2025, arXiv 2503.14476, eq. 13).
    """
    if not (ramp := keys.overlong_penalty_tokens):
        return keys.truncation_penalty * truncated
    return keys.truncation_penalty * np.clip((lengths - (keys.max_new_tokens - ramp)) / ramp, 0, 1)


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
    parts = reward.weighted_parts
    metrics: dict[str, float] = {}
    for key, value in values.items():
        if not isinstance(value, Real):
            what = f"metrics() returned {value!r:.200} for {key!r}"
            raise RewardError(f"reward '{reward.name}': {what}; return a number")
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


def _add_up(parts: dict[str, PartScore], count: int) -> Scores:
    """The sums of the weighted parts of each dialogue; where a part has a reason for its missing score, that reason."""
    totals = []
    for row in range(count):
        missing = (
            NoScore(f"{name}: {x.why}") for name, part in parts.items() if isinstance(x := part.raw[row], NoScore)
        )
        totals.append(next(missing, None) or math.fsum(part.weighted[row] for part in parts.values()))
    return Scores(totals, parts)


def _stop_after(seconds: float, name: str, work: Callable[[], T]) -> T:
    """Return or raise what `work` does, in a thread of its own.

    After `seconds`, raises RewardTimeout, which names the reward, and writes the stacks of all threads to stderr. The work
    cannot be stopped, so its thread goes on, but does not keep the process alive. If the work blocks every other thread,
    the process ends (`ends_the_process`).
    """
    with user_code.ends_the_process(seconds):
        try:
            return user_code.run_with_timeout(seconds, work)
        except user_code.TimeLimit:
            stacks = user_code.all_stacks()
            sys.stderr.write(stacks)
            error = RewardTimeout(
                f"reward '{name}' did not finish within {max(round(seconds, 1), 0):g} seconds (what was left of "
                "reward_timeout_s); the stacks of all threads show where it hangs"
            )
            error.add_note(stacks)
            raise error from None
