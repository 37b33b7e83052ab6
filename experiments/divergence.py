"""How far an agent has moved from its start, reply by reply. B replies of T tokens at most."""

import numpy as np
import torch

from rlhf_dialog.data.chat_template import encode_without_end
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.intervals import Array
from rlhf_dialog.evaluation.replies import Replies, map_batches
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.policy import teacher_forced
from rlhf_dialog.models.precision import without_tf32
from rlhf_dialog.models.token_batch import TokenBatch


@torch.no_grad()
@without_tf32()
def kl_by_token(
    agent: ChatAgent, start: ChatAgent, replies: Replies, batch_size: int = 64, temperature: float = 1.0
) -> Array:
    """The exact KL divergence of the agent from its start in nats, before each token of the agent's replies, (B, T).

    NaN behind the end of a reply; a truncated one has no separator or end token. The sum of a row estimates the KL of a whole
    reply with less variance than the difference of log-probabilities does; unbiased for replies sampled at `temperature` without
    filters. Both agents have the same tokenizer.
    """
    ids = [reply_ids(agent, reply) for reply in replies.dialogues]
    table = np.full((len(ids), max(map(len, ids))), np.nan)
    row = 0

    def divergences(batch: list[Dialogue]) -> Array:
        tokens, start_tokens = _both_tokens(agent, start, batch)
        packed = start_tokens.pack()
        features = packed.scatter(start.policy.in_float32.features(packed)[0])
        reference = start.policy.in_float32, features
        kl = teacher_forced(agent.policy.in_float32, tokens, temperature, with_entropy=False, reference=reference).kl
        assert kl is not None
        return torch.where(tokens.mask, kl.double(), torch.nan).cpu().numpy()

    for part in map_batches(agent, replies.dialogues, batch_size, "KL", divergences):
        table[row : row + len(part), : part.shape[1]] = part
        row += len(part)
    return table


@torch.no_grad()
@without_tf32()
def log_ratios(
    agent: ChatAgent, start: ChatAgent, replies: Replies, batch_size: int = 64, temperature: float = 1.0
) -> Array:
    """log(probability of a reply by the agent / by its start), (B,), in nats.

    For replies of the agent that were chosen among several: the exact KL before each token is that of replies at random.
    """

    def sums(batch: list[Dialogue]) -> Array:
        logprobs, start_logprobs = (
            teacher_forced(responder.policy.in_float32, tokens, temperature, with_entropy=False).logprobs.double()
            for responder, tokens in zip((agent, start), _both_tokens(agent, start, batch), strict=True)
        )
        return np.asarray((logprobs - start_logprobs).sum(dim=1).tolist())

    return np.concatenate(map_batches(agent, replies.dialogues, batch_size, "KL of chosen replies", sums))


def reply_ids(agent: ChatAgent, reply: Dialogue) -> list[int]:
    """The token ids of a reply, with its end unless it is truncated."""
    encoder = agent.encoder
    return encode_without_end(encoder, reply.response) if reply.truncated else encoder.encode_reply(reply.response)


def _both_tokens(agent: ChatAgent, start: ChatAgent, batch: list[Dialogue]) -> tuple[TokenBatch, TokenBatch]:
    """Prompts and replies as the agent and its start read them."""
    ids, turns = [reply_ids(agent, reply) for reply in batch], [reply.prompt_turns for reply in batch]
    systems = [reply.system for reply in batch]
    return agent.encode(turns, systems).with_replies(ids), start.encode(turns, systems).with_replies(ids)
