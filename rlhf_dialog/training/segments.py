"""Dialogues that are longer than the context: their parts, each of which was sampled behind a prompt of its own.

B dialogues, T tokens of a whole dialogue after its first prompt, S segments, P prompt tokens, W tokens of a segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.models.device_copies import send_all


@dataclass(frozen=True)
class Span:
    """The columns `start` to `end` of dialogue `row`."""

    row: int
    start: int
    end: int


@dataclass(frozen=True)
class Segments:
    """Which tokens of (B, T) were sampled behind which prompts (S, P); `own` are the same tokens in (S, W).

    `place` and `own` (K,) count the positions of (B, T) and of (S, W) as if these were one row.
    """

    prompt_ids: Tensor  # (S, P), padded left
    prompt_mask: Tensor  # (S, P)
    spans: list[Span]
    place: Tensor
    own: Tensor
    shape: tuple[int, int]  # (B, T)

    @property
    def rows(self) -> list[int]:
        """The dialogue of each segment."""
        return [span.row for span in self.spans]

    @property
    def width(self) -> int:
        return max(span.end - span.start for span in self.spans)

    def split(self, x: Tensor, empty: int = 0) -> Tensor:
        """(B, T, ...) -> (S, W, ...), with `empty` behind the end of a segment."""
        found = x.new_full((len(self.spans) * self.width, *x.shape[2:]), empty)
        found = found.index_copy(0, self.own, x.flatten(0, 1).index_select(0, self.place))
        return found.unflatten(0, (len(self.spans), self.width))

    def joined(self, x: Tensor) -> Tensor:
        """(S, W, ...) -> (B, T, ...), 0 where no segment is: on the user's turns with which one begins."""
        found = x.new_zeros(self.shape[0] * self.shape[1], *x.shape[2:])
        return found.index_copy(0, self.place, x.flatten(0, 1).index_select(0, self.own)).unflatten(0, self.shape)

    def columns_of(self, batch: Any) -> dict[str, Any]:
        """The fields of a dataclass with B dialogues, for the same tokens in S rows: its tensors (B, T, ...) and (B,), and the
        prompts."""
        columns: dict[str, Any] = {
            "prompt_ids": self.prompt_ids,
            "prompt_mask": self.prompt_mask,
            "prompt_numbers": torch.arange(len(self.spans)),
            "segments": None,
        }
        at = torch.tensor(self.rows, dtype=torch.long, device=self.prompt_ids.device)
        for name in (field.name for field in fields(batch) if field.name not in columns):
            x = getattr(batch, name)
            if isinstance(x, Tensor) and x.shape[:2] == self.shape:
                columns[name] = self.split(x, -1 if name == "support" else 0)
            elif isinstance(x, Tensor) and x.shape == self.shape[:1]:
                columns[name] = x[at]
        return columns

    def of(self, rows: Sequence[int]) -> "Segments":
        """The segments of these dialogues alone, which are numbered from 0 on."""
        number = {row: i for i, row in enumerate(rows)}
        kept = [i for i, span in enumerate(self.spans) if span.row in number]
        spans = [replace(self.spans[i], row=number[self.spans[i].row]) for i in kept]
        at = torch.tensor(kept, dtype=torch.long, device=self.prompt_ids.device)
        return segments_of(self.prompt_ids[at], self.prompt_mask[at], spans, (len(rows), self.shape[1]))


def segments_of(prompt_ids: Tensor, prompt_mask: Tensor, spans: list[Span], shape: tuple[int, int]) -> Segments:
    """The segments of prompts (S, P) and spans (S) in dialogues of `shape` (B, T), on the device of the prompts."""
    width = max((span.end - span.start for span in spans), default=0)
    place = [torch.arange(span.start, span.end) + span.row * shape[1] for span in spans]
    own = [torch.arange(span.end - span.start) + i * width for i, span in enumerate(spans)]
    nothing = torch.empty(0, dtype=torch.long)
    sent = send_all([torch.cat([nothing, *place]), torch.cat([nothing, *own])], prompt_ids.device)
    return Segments(prompt_ids, prompt_mask, spans, sent[0], sent[1], shape)
