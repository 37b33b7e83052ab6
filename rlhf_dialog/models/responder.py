"""A policy that answers: dialogues as prompts, sampled tokens as text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rlhf_dialog.data.chat_template import TurnEncoder
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.models.device_copies import fetch
from rlhf_dialog.models.generation import GenerationLimits, Responses, Sampling, StopRule, respond
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.token_batch import TokenBatch


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
