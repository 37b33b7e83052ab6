"""Dialogues of several turns as tensors: the replies of all rounds in one row, and which of them saw which part of it.

B episodes, T tokens after the prompt, of both speakers; where an episode is longer than the context, S segments of at most W
tokens, each sampled behind a prompt of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.models.generation import Responder, Responses, join_rows
from rlhf_dialog.models.token_batch import TokenBatch, send, send_all


@dataclass(frozen=True)
class Round:
    """One reply in each of the episodes `rows`; `starts` is the number of tokens between its prompt and the reply."""

    rows: list[int]
    starts: list[int]
    responses: Responses


@dataclass(frozen=True)
class Part:
    """The tokens `start` to `end` of an episode, and the prompt behind which they follow."""

    prompt: list[int]
    start: int
    end: int


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


def split_contexts(parts: Sequence[Sequence[Part]], responder: Responder, shape: Sequence[int]) -> Segments:
    """The contexts of the replies in dialogues of `shape` (B, T), from the parts of each."""
    spans = [Span(row, part.start, part.end) for row, some in enumerate(parts) for part in some]
    prompts = responder.batch([part.prompt for some in parts for part in some], torch.arange(len(spans)))
    return Segments(prompts, spans, (shape[0], shape[1]))


def place_rewards(rewards: list[tuple[int, int, float]], like: Tensor) -> Tensor:
    """The rewards (row, column, reward) as a tensor (B, T)."""
    rows, columns, values = zip(*rewards, strict=True)
    placed = torch.zeros_like(like)
    at = send_all([torch.tensor(rows), torch.tensor(columns)], placed.device)
    return placed.index_put_(tuple(at), send(torch.tensor(values, dtype=placed.dtype), placed.device))


def join_rounds(rounds: list[Round], behind: list[list[int]]) -> Responses:
    """The replies of each episode in one row behind its first prompt, with the user's turns between them."""
    prompts, shape = rounds[0].responses.tokens, (len(behind), max(map(len, behind)))
    # of the tokens of each round: their places here, and those in the round
    all_rows, all_columns, written = [], [], []
    for x in rounds:
        mask = x.responses.tokens.response_mask
        places, starts = torch.tensor(x.rows).unsqueeze(1), torch.tensor(x.starts).unsqueeze(1)
        all_rows.append(places.expand_as(mask)[mask])
        all_columns.append((starts + mask.cumsum(dim=1) - 1)[mask])
        written.append(send(mask.flatten().nonzero()[:, 0], prompts.device))
    rows, columns = torch.cat(all_rows), torch.cat(all_columns)
    index = tuple(send_all([rows, columns], prompts.device))

    def join(parts: Sequence[Tensor | None], empty: int = 0) -> Tensor | None:
        if parts[0] is None:
            return None
        tokens = [
            x.flatten(0, 1).index_select(0, kept) for x, kept in zip(parts, written, strict=True) if x is not None
        ]
        x = join_rows(tokens, empty)
        return x.new_full((*shape, *x.shape[1:]), empty).index_put_(index, x)

    names = ("logprobs", "entropy", "values", "features", "sampled_logprobs")
    joined: dict[str, Any] = {name: join([getattr(x.responses, name) for x in rounds]) for name in names}
    ids = torch.tensor([row + [prompts.pad_id] * (shape[1] - len(row)) for row in behind])
    mask = torch.zeros(shape, dtype=torch.bool).index_put_((rows, columns), torch.ones_like(rows).bool())
    support = join([x.responses.tokens.support for x in rounds], empty=-1)
    tokens = prompts.with_responses(send(ids, prompts.device), mask, support)
    return Responses(tokens, torch.zeros(shape[0], dtype=torch.bool), **joined)
