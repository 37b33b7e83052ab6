"""Generate tokens for many rows, one per step, with a cache of each row: packed, or the library's own.

b rows, P prompt tokens.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from rlhf_dialog.models.device_copies import fetch, send
from rlhf_dialog.models.packed_rows import leaders, pack_prompts
from rlhf_dialog.models.packing import KeyValues
from rlhf_dialog.models.policy import Policy, accepted, packs


def position_ids_of(mask: Tensor) -> Tensor:
    """Positions counted over True tokens only: 0, 0, 0, 1, 2 for a prompt with two pads on the left. Same shape as `mask`."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


class Decoder(Protocol):
    """Rows that grow by one token per step; `features` (b, .) and `values` (b,) belong to their newest tokens."""

    policy: Policy
    features: Tensor
    values: Tensor | None
    can_drop_rows: bool

    def step(self, tokens: Tensor) -> None:
        """Append one token (b,) to each row."""

    def keep_rows(self, rows: Tensor) -> None:
        """Drop the rows where `rows` (b,), on the host, is False."""


def new_decoder(
    policy: Policy,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    num_new: int,
    prompts_at_once: int,
    prompt_numbers: Tensor | None = None,
) -> Decoder:
    """The decoder that fits the policy's model, started from prompts (b, P) padded on the left; the mask may lie on the host.

    Rows with the same of `prompt_numbers` (b,), on the host, share their prompt, which a model that packs reads once.
    """
    if packs(policy.lm):
        return PackedDecoder(policy, prompt_ids, prompt_mask, num_new, prompts_at_once, prompt_numbers)
    return PaddedDecoder(policy, prompt_ids, prompt_mask)


class PackedDecoder:
    """For models that pack: computes no padding, and writes keys and values in place."""

    can_drop_rows = True

    def __init__(
        self,
        policy: Policy,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        num_new: int,
        prompts_at_once: int,
        prompt_numbers: Tensor | None = None,
    ):
        (prompt_mask,) = fetch(prompt_mask)
        rows = torch.arange(len(prompt_ids)) if prompt_numbers is None else leaders(prompt_numbers)
        first, number = rows.unique(return_inverse=True)
        self.policy, self.cache = policy, KeyValues(prompt_mask[first].sum(dim=1), num_new, prompt_ids.device)
        parts = []
        for start in range(0, len(first), prompts_at_once):
            some = first[start : start + prompts_at_once]
            packed = pack_prompts(prompt_ids[send(some, prompt_ids.device)], prompt_mask[some])
            parts.append(policy.features(packed, self.cache, start))
        self.features = torch.cat([features for features, _ in parts])
        self.values = torch.cat([v for _, v in parts if v is not None]) if policy.value_head is not None else None
        if len(first) < len(number):
            self.cache.take(number)
            number = send(number, prompt_ids.device)
            self.features = self.features.index_select(0, number)
            self.values = None if self.values is None else self.values.index_select(0, number)

    def step(self, tokens: Tensor) -> None:
        self.features, self.values = self.policy.next_features(tokens, self.cache)

    def keep_rows(self, rows: Tensor) -> None:
        self.cache.keep_rows(rows)


class PaddedDecoder:
    """For models that do not pack: rows are padded on the left, and the model makes the cache."""

    can_drop_rows = False

    def __init__(self, policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor):
        self.policy, self.mask = policy, prompt_mask.to(prompt_ids.device)
        self.positions = position_ids_of(self.mask)
        self.cache: Any = None
        self._run(prompt_ids)

    def step(self, tokens: Tensor) -> None:
        self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], dim=1)
        self.positions = self.positions[:, -1:] + 1
        self._run(tokens.unsqueeze(1))

    def keep_rows(self, rows: Tensor) -> None:
        raise NotImplementedError("the cache belongs to the model")

    def _run(self, tokens: Tensor) -> None:
        options = accepted(self.policy.lm, position_ids=self.positions)
        output, hidden = self.policy.with_hidden_states(
            lambda lm: lm(
                input_ids=tokens,
                attention_mask=self.mask.long(),
                past_key_values=self.cache,
                use_cache=True,
                **options,
            )
        )
        self.features, self.cache = output.logits[:, -1], output.past_key_values
        self.values = None if hidden is None else self.policy.values(hidden[:, -1])
