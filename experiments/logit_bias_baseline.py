"""Mean logit shift: how much of what training gained a shift of the logits gains that is the same in every dialogue.

b[v] = the mean over training prompts of log agent - log start for each token v, one vector for the first token of a response
and one for all others, times a scale that is chosen on validation prompts. B prompts, K response tokens, V vocabulary.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation import replies
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.models.logprobs import at_least_float32
from rlhf_dialog.models.policy import in_chunks
from rlhf_dialog.models.precision import without_tf32

logger = logging.getLogger(__name__)
SCALES = (0.5, 1.0, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class LogitBias:
    """The shift of the logits (V,) of a response's first token and of all others, and its scale."""

    first: Tensor
    later: Tensor
    scale: float = 1.0

    def apply_to(self, sampling: Sampling) -> Sampling:
        """The sampling with the shift."""
        return replace(sampling, bias=(self.scale * self.first, self.scale * self.later))


@torch.no_grad()
def fit_bias(
    agent: ChatAgent, start: ChatAgent, prompts: list[Dialogue], sampling: Sampling, seed: int = 0, batch_size: int = 64
) -> LogitBias:
    """The bias, on the replies of the agent to these prompts. Both agents have the same tokenizer."""
    answers = replies.generate_replies(agent, prompts, sampling, seed, batch_size, "logit shift")
    changes = partial(_changes, agent, start)
    parts = replies.map_batches(agent, answers.dialogues, batch_size, "logit shift", changes)
    num_first, num_others = (sum(counts[i] for _, _, counts in parts) for i in range(2))
    first, others = sum(part[0] for part in parts), sum(part[1] for part in parts)
    return LogitBias(torch.as_tensor(first / max(num_first, 1)), torch.as_tensor(others / max(num_others, 1)))


@without_tf32()
def _changes(agent: ChatAgent, start: ChatAgent, dialogues: list[Dialogue]) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """The sums (V,) of the changes at first and at other tokens of these replies, and the numbers of these tokens."""
    replies_ids, states = [agent.encoder.encode_reply(dialogue.response) for dialogue in dialogues], []
    policies = [responder.policy.in_float32 for responder in (agent, start)]
    for responder, policy in zip((agent, start), policies, strict=True):
        turns, systems = [one.prompt_turns for one in dialogues], [one.system for one in dialogues]
        tokens = responder.encode(turns, systems).with_replies(replies_ids)
        packed = tokens.pack()
        states.append(policy.features(packed)[0])
    is_first = torch.zeros_like(tokens.mask)
    is_first[:, 0] = True
    kept = packed.gather(is_first)

    def add_up(ours: Tensor, theirs: Tensor, at_start: Tensor) -> tuple[Tensor, Tensor]:
        logits = [policy.logits(features) for policy, features in zip(policies, (ours, theirs), strict=True)]
        change = at_least_float32(logits[0]).log_softmax(-1) - at_least_float32(logits[1]).log_softmax(-1)
        return change[at_start].sum(0, keepdim=True), change[~at_start].sum(0, keepdim=True)

    first, others = in_chunks(add_up, agent.policy.positions_at_once, *states, kept)
    return first.sum(0), others.sum(0), (int(kept.sum()), int((~kept).sum()))


def choose_scale(bias: LogitBias, score: Callable[[LogitBias], float]) -> LogitBias:
    """The bias at that one of SCALES which has the largest score; ties: the smallest."""
    tried = [replace(bias, scale=scale) for scale in SCALES]
    scores = [score(one) for one in tried]
    logger.info("logit shift: %s", ", ".join(f"scale {s:g}: {x:.3f}" for s, x in zip(SCALES, scores, strict=True)))
    return tried[scores.index(max(scores))]


def gain_share(shifted: float, agent: float, start: float) -> float | None:
    """The share of the agent's gain over its start that the shifted start reaches; None where the agent has gained nothing."""
    return (shifted - start) / (agent - start) if agent > start else None
