"""A policy that answers: dialogues as prompts, sampled tokens as text, at once or growing token by token.

B dialogues, T response tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlhf_dialog.data.chat_template import TurnEncoder
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.models.generation import (
    GenerationLimits,
    ResponseBuffer,
    Responses,
    Sampling,
    StopRule,
    new_decoder,
    random_numbers,
    respond,
    sampling_context,
    write_tokens,
)
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.token_batch import TokenBatch, fetch


@dataclass(frozen=True)
class Reply:
    """One answer: the text that rewards and metrics see (cut at the separator, without special tokens, stripped), its ids.

    >>> Reply(text="Inside , please .", ids=[14, 10, 1449, 764, 50257], truncated=False)
    """

    text: str
    ids: list[int]  # of the policy, including its end token
    truncated: bool  # cut at `max_new_tokens`


@dataclass(eq=False)
class Responder:
    """A policy with everything it needs to answer: how turns become tokens and back, how tokens are sampled, when a reply ends.

    `context_size`: turns of a dialogue with an environment that a reply sees; None: all for which there is room.
    """

    policy: Policy
    encoder: TurnEncoder
    sampling: Sampling
    stop: StopRule
    limits: GenerationLimits = field(default_factory=GenerationLimits)
    context_size: int | None = None

    def encode(self, turns: Sequence[Sequence[str]], systems: Sequence[str | None] | None = None) -> TokenBatch:
        """The prompts of these turns, oldest first, behind their system messages, on the policy's device."""
        systems = systems or [None] * len(turns)
        return self.batch([self.encoder.encode_prompt(*row) for row in zip(turns, systems, strict=True)])

    def batch(self, ids: Sequence[Sequence[int]], prompt_groups: Tensor | None = None) -> TokenBatch:
        """As `encode`, for prompts that are already ids."""
        return TokenBatch.from_prompts(ids, self.encoder.pad_id, self.policy.lm.device, prompt_groups)

    def generate(self, prompts: TokenBatch, uniform: Tensor | None = None) -> Responses:
        """One response to each prompt, sampled from torch's global random state, or with these `random_numbers`."""
        return respond(self.policy, prompts, self.sampling, self.stop, self.limits, uniform)

    def read(self, responses: Responses) -> list[Reply]:
        """The responses as text, without masked tokens."""
        (ids,) = fetch(responses.tokens.response_ids)
        rows = [row[mask].tolist() for row, mask in zip(ids, responses.tokens.response_mask, strict=True)]
        ends = responses.truncated.tolist()
        return [Reply(self.encoder.reply_text(row), row, end) for row, end in zip(rows, ends, strict=True)]

    def reply(self, dialogues: Sequence[Dialogue], uniform: Tensor | None = None) -> list[Reply]:
        """Answer each dialogue after all that has been said in it."""
        turns = [[*d.prompt_turns, *(turn.text for turn in d.turns)] for d in dialogues]
        return self.read(self.generate(self.encode(turns, [d.system for d in dialogues]), uniform))


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


@torch.no_grad()
def stream(
    speaker: Responder,
    turns: Sequence[Sequence[str]],
    show: Callable[[list[GrowingReply]], bool],
    uniform: Tensor | None = None,
) -> None:
    """Answer the turns of each prompt; `show` gets all replies so far after each token, and returns whether to go on.

    The rows share one generation, and the replies are those that `Responder.reply` would give. `uniform` (B, T) are their
    `random_numbers`, by default from torch's global random state. Raises RunStopped when the policy's predictions are not finite.
    """
    policy, sampling, prompts = speaker.policy, speaker.sampling, speaker.encode(turns)
    if uniform is None:
        uniform = random_numbers(len(prompts), sampling, prompts.device)
    buffer = ResponseBuffer(uniform.shape, prompts.pad_id, prompts.device)
    replies = [GrowingReply() for _ in turns]

    def show_new() -> bool:
        ids, mask, logprobs = buffer.written(buffer.seen - 1)
        alive = torch.zeros(len(turns), dtype=torch.bool)
        alive[buffer.host_rows] = buffer.alive
        for row, reply in enumerate(replies):
            if not reply.ended:
                new_ids, new_logprobs = (x[row][mask[row]].tolist() for x in (ids, logprobs))
                at_limit = buffer.seen == buffer.shape[1]
                replies[row] = _grown(speaker.encoder, reply, new_ids, new_logprobs, bool(alive[row]), at_limit)
        return show(list(replies))

    with sampling_context(policy, prompts.prompt_ids):
        decoder = new_decoder(policy, prompts, sampling.max_new_tokens, speaker.limits.prompts_at_once)
        numbers = uniform.to(prompts.device)
        write_tokens(buffer, decoder, numbers, sampling, speaker.stop, look_every=1, goes_on=show_new)


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
