"""What a candidate must not have lost, beside what people like: the guards of the gate, each against the fixed first version.

No guard needs data: they read the candidate's replies to held-out lines beside the first version's, drawn with the same random
numbers, as in a chat but for the KL divergence. What people like may cost likelihood or change the length; so much as the liked
replies themselves are off is allowed. N lines.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.intervals import Array
from rlhf_dialog.evaluation.replies import pick_prompts
from rlhf_dialog.feedback.learning.learner import Learner
from rlhf_dialog.feedback.learning.tokenized_examples import TokenizedExample, compute_logprobs_in_batches
from rlhf_dialog.feedback.store.examples import DialoguePrompt, Example, Examples, RatedAnswer, liked_examples
from rlhf_dialog.metrics.text import distinct_n
from rlhf_dialog.models.chat_agent import chat_sampling
from rlhf_dialog.models.generation import GenerationLimits, Reply, Sampling, random_numbers
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.precision import without_tf32

BATCH_SIZE = 64
ROOM = 0.05  # below a limit, or above it: tomorrow's held-out prompts are others
MOST_LINES, LEAST_LINES = 1000, 50  # of `guard_prompts: auto`; at a checkpoint as few as the least
MOST_LIKED = 100  # held-out liked replies that a night looks at while it trains
LEAST_ENTROPY = 0.05  # nats per token: a first version that is surer counts as if it had this much
_SENTENCE_END = re.compile(r"[.!?…。！？؟।][\"'”’»)\]*]*$")


@dataclass(frozen=True)
class GuardLimit:
    """One measure, and its limit: `at_most`, else at least."""

    name: str
    value: float
    limit: float
    at_most: bool

    @property
    def passed(self) -> bool:
        """Whether it is within its limit; what is not a number is not."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    @property
    def has_room(self) -> bool:
        """Whether it is well within its limit; what is not a number is left to the gate."""
        sign = 1 if self.at_most else -1
        return not math.isfinite(self.value) or sign * self.value <= sign * self.limit * (1 - sign * ROOM)

    def __str__(self) -> str:
        bound = f"{'at most' if self.at_most else 'at least'} {self.limit:g}"
        return f"{self.name} {self.value:.3g} ({bound}{'' if self.passed else ': FAILED'})"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"value": self.value if math.isfinite(self.value) else None, "passed": self.passed}


@dataclass(frozen=True)
class ReplyMeasures:
    """Of each reply, each (N,)."""

    logprobs: Array  # of the whole reply under the first version
    is_unfinished: Array
    length: Array  # in tokens
    repetition: Array  # the share of its tokens that it has said before

    @property
    def likelihood(self) -> Array:
        return self.logprobs / np.maximum(self.length, 1)

    @property
    def surprise(self) -> float:
        """Of the first version at all these replies, in nats per token; 0 without a token."""
        return float(-self.logprobs.sum() / max(self.length.sum(), 1))


class GuardMeasurement:
    """KL per token, distinct-2, likelihood under the first version, unfinished sentences, length and repetition of replies.

    The lines are `count` of the held-out feedback, the newest, then of `stored_lines`, and as many of the validation split of the
    SFT data, where there is one. Fewer held-out lines are answered several times; with stored ones, fewer than LEAST_LINES are.
    What the first version says is computed once.
    """

    def __init__(self, learner: Learner, heldout: Examples, count: int, stored_lines: Sequence[DialoguePrompt] = ()):
        self.learner, self.settings, self.heldout = learner, learner.settings, heldout
        settings, size = learner.settings, learner.agent.settings.context_size
        own = (DialoguePrompt(one.prompt_turns[-size:], one.system) for one in reversed(heldout.all))
        newest = list(dict.fromkeys([*own, *stored_lines]))[:count]
        count = min(count, max(LEAST_LINES, len(newest))) if stored_lines else count
        draws = math.ceil(count / len(newest)) if newest else 0
        self.prompts = [Dialogue(list(turns), system=system) for turns, system in (newest * draws)[:count]]
        self.prompts += pick_prompts(learner.sft_prompts("validation"), count, settings.seed)
        self.chat_sampling = chat_sampling(learner.agent.settings)

    def measure(self) -> list[GuardLimit]:
        """The guards of the learner's policy as it is now."""
        replies = self._replies(self.learner.policy)
        now = self._measures(replies)
        start = self._first_measures
        liked = self._liked_measures
        errors = {
            "loss of likelihood": worsening(-now.likelihood, -start.likelihood, -liked.likelihood),
            "rise of unfinished sentences": worsening(now.is_unfinished, start.is_unfinished, liked.is_unfinished),
            "change of the length": worsening(now.length, start.length, liked.length, both_ways=True),
            "rise of repetition": worsening(now.repetition, start.repetition, liked.repetition),
        }
        own, first = (distinct_n([one.text for one in some], 2) for some in (replies, self._first_replies))
        distinct = own / first if first else 1.0
        least = self.settings.min_distinct_2
        return [
            GuardLimit("relative KL", self._relative_kl(replies), self.settings.max_relative_kl, at_most=True),
            GuardLimit("distinct-2, of the first version's", distinct, least, at_most=False),
            *(
                GuardLimit(f"{name}, standard errors", value, self.settings.max_worsening, at_most=True)
                for name, value in errors.items()
            ),
        ]

    def _replies(self, policy: Policy) -> list[Reply]:
        return sample_replies(self.learner, policy, self.prompts, self.chat_sampling)

    def _samples(self, policy: Policy, replies: list[Reply]) -> list[Reply]:
        """Of the policy's own distribution: `replies`, where a chat samples from it too."""
        is_same = self.chat_sampling == self.learner.agent.sampling
        return replies if is_same else sample_replies(self.learner, policy, self.prompts)

    def _relative_kl(self, replies: list[Reply]) -> float:
        """The mean log-ratio per token of the policy's own samples, an estimate of the KL divergence, in units of the entropy.

        A policy that says what people like is as far away as that is: only what goes beyond it counts. NaN without a token.
        """
        drawn = self._samples(self.learner.policy, replies)
        measures = self._measures(drawn)
        if not measures.length.any():
            return math.nan
        log_ratios = self._logprobs(self.learner.policy, self._rows(drawn)) - measures.logprobs
        divergence = float(log_ratios.sum() / measures.length.sum())
        return (divergence - min(self._liked_divergence, max(0.0, divergence))) / max(self._entropy, LEAST_ENTROPY)

    @cached_property
    def _first_replies(self) -> list[Reply]:
        return self._replies(self.learner.reference_policy)

    @cached_property
    def _first_measures(self) -> ReplyMeasures:
        return self._measures(self._first_replies)

    def liked_surprise(self) -> float | None:
        """Of the policy as it is now at the newest held-out liked replies, in nats per reply; None without any."""
        rows = self._liked_rows[-MOST_LIKED:]
        return float(-self._logprobs(self.learner.policy, rows).mean()) if rows else None

    @cached_property
    def _liked(self) -> list[Example]:
        return liked_examples(self.heldout)

    @cached_property
    def _liked_rows(self) -> list[TokenizedExample]:
        return [self.learner.encoder.encode_example(one)[0] for one in self._liked]

    @cached_property
    def _liked_measures(self) -> ReplyMeasures:
        """Of the replies that people liked, wrote or chose of the held-out feedback; too long ones would be cut off."""
        texts = [one.response if isinstance(one, RatedAnswer) else one.chosen for one in self._liked]
        longest = self.chat_sampling.max_new_tokens
        unfinished = [
            is_unfinished(text) or len(row.response) > longest
            for text, row in zip(texts, self._liked_rows, strict=True)
        ]
        return self._measures_of(self._liked_rows, unfinished)

    @cached_property
    def _entropy(self) -> float:
        """Of the first version, in nats per token: an estimate from its own samples."""
        return self._measures(self._samples(self.learner.reference_policy, self._first_replies)).surprise

    @property
    def _liked_divergence(self) -> float:
        """By how much the liked replies are less likely than the first version's own, in nats per token: what is allowed."""
        return max(0.0, self._liked_measures.surprise - self._entropy)

    def _rows(self, replies: Sequence[Reply]) -> list[TokenizedExample]:
        rows = []
        for prompt, reply in zip(self.prompts, replies, strict=True):
            row = self.learner.encoder.encode_answer(prompt.prompt_turns, reply.text, reply.ids, prompt.system)
            rows.append(TokenizedExample(row.prompt, reply.ids))
        return rows

    def _measures(self, replies: Sequence[Reply]) -> ReplyMeasures:
        unfinished = [reply.truncated or is_unfinished(reply.text) for reply in replies]
        return self._measures_of(self._rows(replies), unfinished)

    def _measures_of(self, rows: Sequence[TokenizedExample], unfinished: Sequence[bool]) -> ReplyMeasures:
        lengths = np.asarray([len(row.response) for row in rows], dtype=float)
        logprobs = self._logprobs(self.learner.reference_policy, rows)
        repetition = (lengths - [len(set(row.response)) for row in rows]) / np.maximum(lengths, 1)
        return ReplyMeasures(logprobs, np.asarray(unfinished, float), lengths, repetition)

    @without_tf32()
    def _logprobs(self, policy: Policy, rows: Sequence[TokenizedExample]) -> Array:
        """(N,) in float32; 0 of a reply without a token."""
        spoken = [row for row in rows if row.response]
        found = compute_logprobs_in_batches(policy.in_float32, spoken, self.learner.encoder.encoder.pad_id, BATCH_SIZE)
        logprobs = np.zeros(len(rows))
        logprobs[[bool(row.response) for row in rows]] = found.numpy()
        return logprobs


def worsening(ours: Array, first: Array, liked: Array, both_ways: bool = False) -> float:
    """How far the mean has risen (with `both_ways`: or fallen) from `first` (N,) to `ours` (N,), in its standard errors.

    Where the mean of `liked` (M,) is on that side of the first version's, only what goes beyond it counts, and its own error
    counts too.
    """
    change, wanted = ours - first, liked.mean() - first.mean() if len(liked) and len(first) else 0.0
    if len(change) < 2:
        return 0.0
    sign = max((1, -1) if both_ways else (1,), key=lambda sign: sign * change.mean() - max(0.0, sign * wanted))
    excess, error = sign * change.mean() - max(0.0, sign * wanted), change.std(ddof=1) / math.sqrt(len(change))
    if sign * wanted > 0 and len(liked) > 1:
        error = math.hypot(error, liked.std(ddof=1) / math.sqrt(len(liked)))
    return float(excess / max(error, 1e-9))


def is_unfinished(text: str) -> bool:
    """Whether the last sentence has no mark at its end.

    >>> is_unfinished("It is from seven to"), is_unfinished('She said "yes."')
    (True, False)
    """
    return not _SENTENCE_END.search(text.rstrip())


def sample_replies(
    learner: Learner, policy: Policy, prompts: Sequence[Dialogue], sampling: Sampling | None = None
) -> list[Reply]:
    """One reply of the policy to each prompt, with the same random numbers for each policy. `sampling` replaces the agent's."""
    agent, settings, device = learner.agent, learner.settings, policy.lm.device
    limits = GenerationLimits(prompts_at_once=settings.per_device_microbatch_size)
    responder = agent.local(sampling, limits, policy)
    generator = torch.Generator(device).manual_seed(settings.seed)
    parts = [prompts[start : start + BATCH_SIZE] for start in range(0, len(prompts), BATCH_SIZE)]
    drawn = (random_numbers(len(part), responder.sampling, device, generator) for part in parts)
    return [reply for part, uniform in zip(parts, drawn, strict=True) for reply in responder.reply(part, uniform)]
