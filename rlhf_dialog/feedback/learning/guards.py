"""What a candidate must not have lost, beside what people like: the guards of the gate, each against the fixed first version."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from rlhf_dialog.data.chat_template import keep_with_room
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.measure import perplexity
from rlhf_dialog.evaluation.replies import pick_prompts, reference_nll
from rlhf_dialog.feedback.learning.learner import Learner
from rlhf_dialog.feedback.learning.tokenized_examples import TokenizedExample, compute_logprobs_in_batches, sft_prompts
from rlhf_dialog.feedback.store.examples import Examples, HeldOut
from rlhf_dialog.feedback.store.settings import BotSettings
from rlhf_dialog.metrics.text import distinct_n
from rlhf_dialog.models.generation import GenerationLimits, random_numbers
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.precision import without_tf32
from rlhf_dialog.models.responder import Reply, Responder
from rlhf_dialog.runs.services.guard import GuardLimit

BATCH_SIZE = 64


def measure_guards(learner: Learner, heldout: HeldOut) -> list[GuardLimit]:
    """The guards of the gate, as `GuardMeasurement` says."""
    return GuardMeasurement(learner, heldout).measure()


class GuardMeasurement:
    """KL per token and distinct-2 of replies to `guard_prompts` prompts, and the perplexity where there is a validation split.

    The prompts are those of the validation split of the SFT data, else of the held-out feedback. What the first version says is
    computed once.
    """

    def __init__(self, learner: Learner, heldout: Examples):
        self.learner, self.settings = learner, learner.settings
        self.validation = validation_prompts(learner)
        size = learner.agent.settings.context_size
        self.prompts = self.validation or distinct_prompts(heldout, learner.settings, size)

    def measure(self) -> list[GuardLimit]:
        """The guards of the learner's policy as it is now."""
        learner, settings = self.learner, self.settings
        candidate = make_responder(learner, learner.policy)
        ours = sample_replies(candidate, self.prompts, settings.seed)
        divergence = _kl(learner, self.prompts, ours)
        own, first = (distinct_n([reply.text for reply in replies], 2) for replies in (ours, self._first_replies))
        distinct = own / first if first else 1.0
        guards = [
            GuardLimit("KL from the first version, nats per token", divergence, settings.max_kl, True),
            GuardLimit("distinct-2, of the first version's", distinct, settings.min_distinct_2, False),
        ]
        if self.validation:
            rise = _perplexity(candidate, self.validation) / self._first_perplexity - 1
            guards.append(GuardLimit("rise of the perplexity", rise, settings.max_perplexity_rise, True))
        return guards

    @cached_property
    def _first(self) -> Responder:
        return make_responder(self.learner, self.learner.reference_policy)

    @cached_property
    def _first_replies(self) -> list[Reply]:
        return sample_replies(self._first, self.prompts, self.settings.seed)

    @cached_property
    def _first_perplexity(self) -> float:
        return _perplexity(self._first, self.validation)


def validation_prompts(learner: Learner) -> list[Dialogue]:
    """Prompts of the validation split of the SFT data, drawn by the seed; none without such data."""
    settings, agent = learner.settings, learner.agent.settings
    if settings.sft_data_path is None:
        return []
    columns = tuple(settings.sft_columns.items())
    found = sft_prompts(settings.sft_data_path, "validation", agent.context_size, agent.turn_separator, columns)
    return pick_prompts(keep_with_room(learner.agent.encoder, found), settings.guard_prompts, settings.seed)


def distinct_prompts(examples: Examples, settings: BotSettings, context_size: int) -> list[Dialogue]:
    """The newest different prompts, `guard_prompts` at most."""
    distinct = list(dict.fromkeys(one.prompt_turns[-context_size:] for one in reversed(examples.all)))
    return [Dialogue(list(turns)) for turns in distinct[: settings.guard_prompts]]


def make_responder(learner: Learner, policy: Policy) -> Responder:
    """Lets this policy reply as the learner's agent does."""
    agent = learner.agent
    limits = GenerationLimits(prompts_at_once=learner.settings.per_device_microbatch_size)
    return Responder(policy, agent.encoder, agent.sampling, agent.stop, limits)


def sample_replies(responder: Responder, prompts: Sequence[Dialogue], seed: int) -> list[Reply]:
    """One reply to each prompt; the same seed gives the same random numbers for each, whoever replies."""
    device = responder.policy.lm.device
    generator = torch.Generator(device).manual_seed(seed)
    parts = [prompts[start : start + BATCH_SIZE] for start in range(0, len(prompts), BATCH_SIZE)]
    drawn = (random_numbers(len(part), responder.sampling, device, generator) for part in parts)
    return [reply for part, uniform in zip(parts, drawn, strict=True) for reply in responder.reply(part, uniform)]


@without_tf32()
def _kl(learner: Learner, prompts: Sequence[Dialogue], replies: Sequence[Reply]) -> float:
    """The mean log-ratio per token of the candidate's own replies, an estimate of the KL divergence."""
    rows = [
        TokenizedExample(
            learner.encoder.encode_answer(prompt.prompt_turns, reply.text, reply.ids, prompt.system).prompt, reply.ids
        )
        for prompt, reply in zip(prompts, replies, strict=True)
        if reply.ids
    ]
    if not rows:
        return math.nan
    policies = (learner.policy.in_float32, learner.reference_policy.in_float32)
    pad_id = learner.encoder.encoder.pad_id
    own, first = (compute_logprobs_in_batches(policy, rows, pad_id, BATCH_SIZE) for policy in policies)
    return (own - first).sum().item() / sum(len(row.response) for row in rows)


def _perplexity(speaker: Responder, prompts: list[Dialogue]) -> float:
    sums: Any = np.asarray(reference_nll(speaker, prompts)).sum(axis=0)
    return float(perplexity(sums))
