"""How far an agent has moved from its start, reply by reply. B replies of T tokens at most."""

import numpy as np
import torch

from rlhf_dialog.data.chat_template import encode_without_end
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.intervals import Array
from rlhf_dialog.evaluation.replies import Replies, batches
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.policy import teacher_forced


@torch.no_grad()
def kl_by_token(
    agent: ChatAgent, start: ChatAgent, replies: Replies, batch_size: int = 64, temperature: float = 1.0
) -> Array:
    """The exact KL divergence of the agent from its start in nats, before each token of the agent's replies, (B, T).

    NaN behind the end of a reply; a truncated one has no separator or end token. The sum of a row estimates the KL of a whole
    reply with less variance than the difference of log-probabilities does; unbiased for replies sampled at `temperature` without
    filters. Both agents have the same tokenizer.
    """
    encoder = agent.encoder

    def reply_ids(reply: Dialogue) -> list[int]:
        return encode_without_end(encoder, reply.response) if reply.truncated else encoder.encode_reply(reply.response)

    longest = max(len(reply_ids(reply)) for reply in replies.dialogues)
    table = np.full((len(replies.dialogues), longest), np.nan)
    row = 0
    for batch in batches(replies.dialogues, batch_size, "KL"):
        ids, turns = [reply_ids(dialogue) for dialogue in batch], [dialogue.prompt_turns for dialogue in batch]
        systems = [dialogue.system for dialogue in batch]
        tokens, start_tokens = (speaker.encode(turns, systems).with_replies(ids) for speaker in (agent, start))
        packed = start_tokens.pack()
        features = packed.scatter(start.policy.features(packed)[0])
        reference = start.policy, features
        kl = teacher_forced(agent.policy, tokens, temperature, with_entropy=False, reference=reference).kl
        assert kl is not None
        table[row : row + len(batch), : kl.shape[1]] = torch.where(tokens.mask, kl.double(), torch.nan).cpu().numpy()
        row += len(batch)
    return table


def by_position(kl: Array) -> list[dict[str, float]]:
    """For each token from the first one: the mean `kl`, and the number of `replies` that have it."""
    counts = np.isfinite(kl).sum(axis=0)
    return [
        {"kl": float(np.nanmean(kl[:, i])), "replies": int(count)} for i, count in enumerate(counts.tolist()) if count
    ]
