"""Replies that grow token by token, with the tokens, texts and log-probabilities that `Responder.reply` would give.

B dialogues, T response tokens.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_dialog.data.chat_template import TurnEncoder
from rlhf_dialog.models.generation import ResponseBuffer, new_decoder, random_numbers, sampling_context, write_tokens
from rlhf_dialog.models.responder import Responder
from rlhf_dialog.models.token_batch import TokenBatch


@dataclass(frozen=True)
class GrowingReply:
    """A reply so far: `text` is shown as it is, and the text of the finished reply begins with it.

    `ids` are all tokens so far, with the end token, and `logprobs` theirs, under the distribution that they were sampled
    from; `truncated` says of a reply that has `ended` that the length limit ended it.

    >>> GrowingReply(text="Inside ,", ids=[14, 10], logprobs=[-1.2, -0.4], ended=False, truncated=False)
    """

    text: str = ""
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    ended: bool = False
    truncated: bool = False


def stream(
    speaker: Responder, turns: Sequence[Sequence[str]], uniform: Tensor | None = None
) -> Generator[list[GrowingReply], None, None]:
    """Answer the turns of each prompt; after each token, all replies so far. The rows share one generation.

    `uniform` (B, T) are the `random_numbers` of the replies, by default from torch's global random state. Raises RunStopped when
    the policy's predictions are not finite.
    """
    replies = [GrowingReply() for _ in turns]
    since = 0
    for buffer in _write_by_token(speaker, speaker.encode(turns), uniform):
        ids, mask, logprobs = buffer.written(since)
        since = buffer.seen
        alive = torch.zeros(len(turns), dtype=torch.bool)
        alive[buffer.host_rows] = buffer.alive
        at_limit = since == buffer.shape[1]
        for row, reply in enumerate(replies):
            if not reply.ended:
                new_ids, new_logprobs = (x[row][mask[row]].tolist() for x in (ids, logprobs))
                replies[row] = _grown(speaker.encoder, reply, new_ids, new_logprobs, bool(alive[row]), at_limit)
        yield list(replies)


def _grown(
    encoder: TurnEncoder, reply: GrowingReply, ids: list[int], logprobs: list[float], alive: bool, at_limit: bool
) -> GrowingReply:
    """`reply` with new tokens."""
    all_ids = (*reply.ids, *ids)
    ended = at_limit or not alive
    text = encoder.reply_text(list(all_ids))
    if not ended:
        text = certain(text, encoder)
        text = text if text.startswith(reply.text) else reply.text
    return GrowingReply(text, all_ids, (*reply.logprobs, *logprobs), ended, ended and alive)


def certain(text: str, encoder: TurnEncoder) -> str:
    """The beginning of a reply's text that no later token changes.

    Left out are a part of a letter, a beginning of the separator, and white space at the end; and the last word where
    the tokenizer's clean-up moves the next one closer (`do n't` to `don't`).
    """
    if getattr(encoder.tokenizer, "clean_up_tokenization_spaces", False):
        text = text.rpartition(" ")[0]
    separator = getattr(encoder, "separator", "")
    while True:
        held = next((n for n in range(len(separator) - 1, 0, -1) if text.endswith(separator[:n])), 0)
        shorter = text[: len(text) - held].rstrip().rstrip("\ufffd")
        if shorter == text:
            return text
        text = shorter


@torch.no_grad()
def _write_by_token(speaker: Responder, prompts: TokenBatch, uniform: Tensor | None) -> Iterator[ResponseBuffer]:
    """The buffer of the responses after each token."""
    policy, sampling = speaker.policy, speaker.sampling
    if uniform is None:
        uniform = random_numbers(len(prompts), sampling, prompts.device)
    buffer = ResponseBuffer(uniform.shape, prompts.pad_id, prompts.device)
    with sampling_context(policy, prompts.prompt_ids):
        decoder = new_decoder(policy, prompts, sampling.max_new_tokens, speaker.limits.prompts_at_once)
    looks = write_tokens(buffer, decoder, uniform.to(prompts.device), sampling, speaker.stop, look_every=1)
    while True:
        with sampling_context(policy, prompts.prompt_ids):  # not around the pause, in which others compute
            try:
                next(looks)
            except StopIteration:
                return
        yield buffer
