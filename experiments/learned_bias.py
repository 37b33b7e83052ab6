"""A bias learned from the score: what a shift of the logits can reach that is the same for every prompt.

Two vectors over the vocabulary are added to the logits of the frozen start, one for the first token of a response and one for
all later ones, as in the mean logit shift: the first token decides how a reply begins, and a shift of the end token how long it
is. RLOO (Ahmadian et al. 2024, arXiv 2402.14740) trains them on the reward of a run, without a KL penalty. B responses,
K response tokens, V vocabulary.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from experiments.logit_bias_baseline import LogitBias
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.measure import Judges, score_replies
from rlhf_dialog.evaluation.replies import Replies
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.models.logprobs import at_least_float32, predict
from rlhf_dialog.models.network import num_embeddings
from rlhf_dialog.models.policy import in_chunks
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.rewards.scoring import Scorer, metrics_of

logger = logging.getLogger(__name__)
NUM_PROMPTS, NUM_RESPONSES = 32, 8  # prompts of an iteration by default, and responses to each
LOG_EVERY = 10  # iterations
EPS = 1e-3  # of Adam: with 1e-8 tokens that are never drawn move as far as the others, by noise alone


@dataclass(frozen=True)
class BiasTraining:
    """The rate of Adam, and how long to learn: whichever of the two is reached first, by whole iterations."""

    rate: float = 0.05
    iterations: float = math.inf
    tokens: float = math.inf  # generated
    seed: int = 0
    num_prompts: int = NUM_PROMPTS  # of an iteration


def learn_bias(
    start: ChatAgent, prompts: Sequence[Dialogue], scorer: Scorer, sampling: Sampling, training: BiasTraining
) -> LogitBias:
    """The bias with the highest score that was found; a reward that adapts to rollouts, as LengthHold, does so here."""
    lm = start.policy.lm
    count = start.policy.num_ids or num_embeddings(lm)
    bias = at_least_float32(torch.zeros(2, count, dtype=lm.dtype, device=lm.device)).requires_grad_()
    optimizer = torch.optim.Adam([bias], lr=training.rate, eps=EPS)
    generator, means, tokens = np.random.default_rng(training.seed), list[float](), 0
    torch.manual_seed(training.seed)
    while len(means) < training.iterations and tokens < training.tokens:
        picked = generator.choice(len(prompts), min(training.num_prompts, len(prompts)), replace=False)
        asked = [prompts[i] for i in picked.tolist() for _ in range(NUM_RESPONSES)]
        batch, replies = answer(start, asked, LogitBias(*bias.detach()).apply_to(sampling))
        scores = score_replies(replies, Judges(purpose="rollout", iteration=len(means)), scorer)
        metrics_of(scorer.reward)
        advantages = leave_one_out(torch.as_tensor(scores, dtype=bias.dtype, device=bias.device))
        optimizer.zero_grad()
        loss = -(advantages * response_logprobs(start, batch, bias, sampling.temperature)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        means.append(float(scores.mean()))
        tokens += sum(replies.num_tokens)
        if len(means) % LOG_EVERY == 0:
            score = np.mean(means[-LOG_EVERY:])
            logger.info("learned bias: iteration %d, %d tokens, score %.3f", len(means), tokens, score)
    return LogitBias(*bias.detach())


def answer(
    start: ChatAgent, asked: list[Dialogue], sampling: Sampling, num_responses: int = NUM_RESPONSES
) -> tuple[TokenBatch, Replies]:
    """One response to each of the prompts, of which `num_responses` in a row are the same, as tokens and as text."""
    responder = start.local(sampling)
    groups = torch.arange(len(asked)) // num_responses
    batch = responder.encode([one.prompt_turns for one in asked], [one.system for one in asked])
    responses = responder.generate(replace(batch, prompt_groups=groups))
    texts = responder.read(responses)
    dialogues = [prompt.with_reply(one.text, one.truncated) for prompt, one in zip(asked, texts, strict=True)]
    return responses.tokens, Replies(dialogues, [len(one.ids) for one in texts])


def leave_one_out(scores: Tensor) -> Tensor:
    """(B,): the score of each response less the mean of the others to its prompt."""
    groups = scores.view(-1, NUM_RESPONSES)
    return ((groups - groups.mean(dim=1, keepdim=True)) * NUM_RESPONSES / (NUM_RESPONSES - 1)).flatten()


def response_logprobs(start: ChatAgent, batch: TokenBatch, bias: Tensor, temperature: float) -> Tensor:
    """The log-probability (B,) of each response under the start with the bias (2, V), differentiable in the bias alone."""
    packed, is_first = batch.pack(), torch.zeros_like(batch.mask)
    is_first[:, 0] = True

    def part(features: Tensor, targets: Tensor, first: Tensor) -> tuple[Tensor, Tensor | None]:
        with torch.no_grad():
            logits = at_least_float32(start.policy.logits(features))
        shifted = logits + torch.where(first.unsqueeze(1), bias[0], bias[1])
        return predict(shifted, targets, temperature, None, False)

    with torch.no_grad():
        features, _ = start.policy.features(packed)
    size, first = start.policy.positions_at_once, packed.gather(is_first)
    logprobs, _ = in_chunks(part, size, features, packed.targets, first)
    return packed.scatter(logprobs).sum(dim=1)
