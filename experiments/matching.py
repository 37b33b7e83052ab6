"""The start at the temperature that gives it another system's distinct-2: what sharper sampling alone would have gained."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.measure import BLOCK
from rlhf_dialog.evaluation.replies import Replies, generate_replies
from rlhf_dialog.metrics.text import blocked_distinct_n
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import Sampling

logger = logging.getLogger(__name__)
TEMPERATURES = (0.3, 1.5)
MATCHED_WITHIN = 0.001  # of distinct-2
MATCHING_STEPS = 12


@dataclass(frozen=True)
class Match:
    """The start's replies at the temperature at which its `distinct_2` is closest to `target`."""

    temperature: float
    distinct_2: float
    target: float
    answers: Replies

    @property
    def miss(self) -> float:
        return abs(self.distinct_2 - self.target)

    @property
    def title(self) -> str:
        found = f"temperature {self.temperature:g}, distinct-2 {self.distinct_2:.3f} against {self.target:.3f}"
        return f"before, distinct-2 matched ({found})"


def match_distinct_2(
    start: ChatAgent,
    prompts: list[Dialogue],
    sampling: Sampling,
    target: float,
    steps: int = MATCHING_STEPS,
    batch_size: int = 64,
) -> Match | None:
    """The start at the temperature that gives it the `target` distinct-2, by bisection on all prompts.

    The bisection ends at a distance of 0.001, or after `steps` with the closest one. None, with a notice, when there is none
    between temperature 0.3 and 1.5.
    """

    def at(temperature: float) -> Match:
        how = replace(sampling, temperature=temperature, greedy=False)
        title = f"matching distinct-2, temperature {temperature:g}"
        answers = generate_replies(start, prompts, how, 0, batch_size, title)
        return Match(temperature, distinct_2([reply.response for reply in answers.dialogues]), target, answers)

    low, high = TEMPERATURES
    ends = at(low), at(high)
    if not ends[0].distinct_2 <= target < ends[1].distinct_2:
        logger.warning("no temperature from %g to %g gives the start a distinct-2 of %.3f", low, high, target)
        return None
    best = min(ends, key=lambda match: match.miss)
    for _ in range(steps):
        if best.miss <= MATCHED_WITHIN:
            break
        match = at(round((low + high) / 2, 4))
        best = min(best, match, key=lambda match: match.miss)
        low, high = (low, match.temperature) if match.distinct_2 > target else (match.temperature, high)
    return best


def distinct_2(texts: Sequence[str]) -> float:
    """The mean over blocks of 100 texts, as `rlhf_dialog.evaluation.measure` has it."""
    return float(np.mean(blocked_distinct_n(texts, 2, BLOCK)))
