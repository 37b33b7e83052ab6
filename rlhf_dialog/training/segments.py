"""Dialogues that are longer than the context: their parts, each of which was sampled behind a prompt of its own.

B dialogues, T tokens of a whole dialogue after its first prompt, S segments, W tokens of a segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlhf_dialog.models.device_copies import send_all
from rlhf_dialog.models.token_batch import TokenBatch


@dataclass(frozen=True)
class Span:
    """The columns `start` to `end` of dialogue `row`."""

    row: int
    start: int
    end: int


@dataclass(frozen=True)
class Segments:
    """Which tokens of (B, T), the `shape`, were sampled behind which of the S `prompts`."""

    prompts: TokenBatch
    spans: list[Span]
    shape: tuple[int, int]

    @property
    def rows(self) -> list[int]:
        """The dialogue of each segment."""
        return [span.row for span in self.spans]

    @property
    def width(self) -> int:
        return max((span.end - span.start for span in self.spans), default=0)

    def split(self, x: Tensor, empty: int = 0) -> Tensor:
        """(B, T, ...) -> (S, W, ...), with `empty` behind the end of a segment."""
        whole, parts = self._places(x.device)
        flat = x.new_full((len(self.spans) * self.width, *x.shape[2:]), empty)
        flat = flat.index_copy(0, parts, x.flatten(0, 1).index_select(0, whole))
        return flat.unflatten(0, (len(self.spans), self.width))

    def join(self, x: Tensor) -> Tensor:
        """(S, W, ...) -> (B, T, ...), 0 where no segment is: on the user's turns with which one begins."""
        whole, parts = self._places(x.device)
        flat = x.new_zeros(self.shape[0] * self.shape[1], *x.shape[2:])
        return flat.index_copy(0, whole, x.flatten(0, 1).index_select(0, parts)).unflatten(0, self.shape)

    def split_tokens(self, tokens: TokenBatch) -> TokenBatch:
        """The responses of B dialogues as S rows, each behind its own prompt."""
        support = None if tokens.support is None else self.split(tokens.support, -1)
        return self.prompts.with_responses(self.split(tokens.response_ids), self.split(tokens.response_mask), support)

    def select(self, rows: Sequence[int]) -> "Segments":
        """The segments of these dialogues alone, which are numbered from 0 on."""
        number = {row: i for i, row in enumerate(rows)}
        kept = [i for i, span in enumerate(self.spans) if span.row in number]
        spans = [replace(self.spans[i], row=number[self.spans[i].row]) for i in kept]
        prompts = self.prompts.rows(torch.tensor(kept, dtype=torch.long))
        return Segments(prompts, spans, (len(rows), self.shape[1]))

    def _places(self, device: torch.device) -> list[Tensor]:
        """The positions of the tokens (K,) in (B, T) and in (S, W), counted as if these were one row."""
        nothing = torch.empty(0, dtype=torch.long)
        whole = [torch.arange(span.start, span.end) + span.row * self.shape[1] for span in self.spans]
        parts = [torch.arange(span.end - span.start) + i * self.width for i, span in enumerate(self.spans)]
        return send_all([torch.cat([nothing, *whole]), torch.cat([nothing, *parts])], device)
