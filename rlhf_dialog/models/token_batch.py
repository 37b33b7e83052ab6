"""Prompts and responses as tokens, and which of these tokens one forward pass computes.

The host decides from the masks what lies where, while the ids are on the models' device, so it never waits for a GPU.

B rows, P prompt tokens, T response tokens, S kept tokens of a filter; of packed rows, N computed tokens, M tokens of all rows
(more than N where prompts are shared), L tokens of the longest row, K response tokens that are predicted.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlhf_dialog.models.masks import as_bias, last_token

ROWS_TOGETHER = 4  # on a CPU: rows of similar length make little padding in the attention
Index = tuple[Tensor, slice]  # rows (b,) on the device, and response columns: of any tensor (B, T, ...)


@dataclass
class TokenBatch:
    """Prompts (B, P), padded on the left, and their responses (B, T), padded on the right; (B, 0) before there are any.

    Ids and `support` lie on the models' device, masks and `prompt_groups` on the host. `response_mask` is True on the tokens that
    count, and may have holes. Rows of one prompt group (B,) have the same prompt, which is computed once; None: each row has its
    own. `support` (B, T, S): the token ids that a filter kept at each position, padded with -1; None without a filter.
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    response_ids: Tensor
    response_mask: Tensor
    prompt_groups: Tensor | None = None
    support: Tensor | None = None
    pad_id: int = 0

    def __post_init__(self) -> None:
        self.prompt_mask, self.response_mask = fetch(self.prompt_mask, self.response_mask)

    @classmethod
    def from_prompts(
        cls, prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device, prompt_groups: Tensor | None = None
    ) -> "TokenBatch":
        """Prompts alone, from their token ids."""
        host_ids, mask = pad_left(prompts, pad_id)
        ids = send(host_ids, device)
        return cls(ids, mask, ids[:, :0], mask[:, :0], prompt_groups, pad_id=pad_id)

    def with_responses(
        self, response_ids: Tensor, response_mask: Tensor, support: Tensor | None = None
    ) -> "TokenBatch":
        """The same prompts with other responses (B, T)."""
        return replace(self, response_ids=response_ids, response_mask=response_mask, support=support)

    def with_replies(self, replies: Sequence[Sequence[int]]) -> "TokenBatch":
        """The same prompts with these token ids as responses."""
        ids, mask = pad_left([reply[::-1] for reply in replies], self.pad_id)
        return self.with_responses(send(ids.flip(1), self.device), mask.flip(1))

    def __len__(self) -> int:
        return len(self.prompt_ids)

    @property
    def device(self) -> torch.device:
        return self.prompt_ids.device

    @cached_property
    def mask(self) -> Tensor:
        """`response_mask` on the models' device."""
        return send(self.response_mask, self.device)

    def rows(self, rows: Tensor | slice) -> "TokenBatch":
        """Some rows: a slice, or their numbers on the host."""
        return self._cut(rows, send(rows, self.device) if isinstance(rows, Tensor) else rows, 0, None)

    def without_padding(self) -> "TokenBatch":
        """Without the columns that are padding in all rows."""
        return self._cut(slice(None), slice(None), *self._columns_in_use(slice(None)))

    def microbatches(self, size: int, rows: Tensor | None = None) -> list[tuple[Index, "TokenBatch"]]:
        """At most `size` rows of similar length each, without needless padding, and where they are in the columns (B, T, ...).

        Of all rows, or of the numbers `rows` (N,) on the host. Rows of one prompt group come into the same microbatch, unless
        they are more than `size`.
        """
        rows = torch.arange(len(self)) if rows is None else rows
        if not len(rows):
            return []
        lengths = self.prompt_mask[rows].sum(dim=1) + last_token(self.response_mask[rows]) + 1
        order = rows[lengths.argsort(stable=True)]
        parts = list(order.split(size)) if self.prompt_groups is None else self._whole_groups(order, size)
        microbatches, device_parts = [], send(torch.cat(parts), self.device).split([len(x) for x in parts])
        for part, device_rows in zip(parts, device_parts, strict=True):
            start, end = self._columns_in_use(part)
            microbatches.append(((device_rows, slice(0, end)), self._cut(part, device_rows, start, end)))
        return microbatches

    def put(self, columns: dict[str, Tensor], index: Index, packed: "Packed", found: dict[str, Tensor]) -> None:
        """Write what was `found` of a packed microbatch, tensors (K, ...), into columns (B, T, ...), 0 outside of the mask."""
        for name, x in found.items():
            if name not in columns:
                columns[name] = x.new_zeros(*self.response_mask.shape, *x.shape[1:])
            columns[name][index] = packed.scatter(x)

    def pack(self) -> "Packed":
        """Prompts and responses without their padding; the last response token of a row predicts nothing."""
        columns = torch.arange(self.response_mask.shape[1])
        fed = torch.cat([self.prompt_mask, columns < last_token(self.response_mask).unsqueeze(1)], dim=1)
        newest = fed.flatten().cumsum(0).view_as(fed) - 1  # of each column: the last token that is fed so far
        kept = newest[:, self.prompt_ids.shape[1] - 1 : -1][self.response_mask]
        packed = self._pack(fed, kept, self.response_mask.flatten().nonzero()[:, 0])
        if self.support is not None:
            packed.support = packed.gather(self.support)
        return packed

    def pack_prompts(self) -> "Packed":
        """Prompts alone; `keep` is the last token of each, `targets` is empty."""
        prompts = replace(self, response_ids=self.response_ids[:, :0], response_mask=self.response_mask[:, :0])
        kept = self.prompt_mask.sum(dim=1).cumsum(dim=0) - 1
        return prompts._pack(self.prompt_mask, kept, torch.empty(0, dtype=torch.long))

    def _cut(self, rows: Tensor | slice, device_rows: Tensor | slice, start: int, end: int | None) -> "TokenBatch":
        """Rows on the host and the same ones on the device; prompt columns from `start`, response columns up to `end`."""
        return TokenBatch(
            self.prompt_ids[device_rows, start:],
            self.prompt_mask[rows, start:],
            self.response_ids[device_rows, :end],
            self.response_mask[rows, :end],
            None if self.prompt_groups is None else self.prompt_groups[rows],
            None if self.support is None else self.support[device_rows, :end],
            self.pad_id,
        )

    def _columns_in_use(self, rows: Tensor | slice) -> tuple[int, int]:
        """The first prompt column, and the end of the response columns, that are not padding in all of the rows."""
        start = int(self.prompt_mask[rows].any(dim=0).int().argmax())
        return start, int(last_token(self.response_mask[rows]).max()) + 1

    def _whole_groups(self, rows: Tensor, size: int) -> list[Tensor]:
        """`rows` (N,) in parts of at most `size`: those of one prompt group side by side, in one part if they fit."""
        assert self.prompt_groups is not None
        groups: dict[int, list[int]] = {}
        for row, number in zip(rows.tolist(), self.prompt_groups[rows].tolist(), strict=True):
            groups.setdefault(number, []).append(row)
        parts: list[list[int]] = [[]]
        for group in groups.values():
            for start in range(0, len(group), size):
                piece = group[start : start + size]
                if len(parts[-1]) + len(piece) > size:
                    parts.append([])
                parts[-1] += piece
        return [torch.tensor(part) for part in parts]

    def _pack(self, fed: Tensor, kept: Tensor, target_index: Tensor) -> "Packed":
        """From what the host knows: which tokens (B, L) are fed, which of these M are kept for the targets (K,), and the targets'
        places (K,) in the responses."""
        groups = self.prompt_groups
        together = ROWS_TOGETHER if self.device.type == "cpu" else len(fed)
        if groups is None or len(groups.unique()) == len(fed):
            tokens = fed.flatten().nonzero()[:, 0]
            source, attended = torch.arange(len(tokens)), _group_rows(fed.sum(dim=1), together)
        else:
            tokens, source, attended = _share_prompts(fed, self.prompt_ids.shape[1], leaders(groups), together)
        positions, width = fed.cumsum(dim=1) - 1, int(fed.sum(dim=1).max())
        place = (torch.arange(len(fed)).unsqueeze(1) * width + positions)[fed]
        plan = [tokens, positions.flatten()[tokens], place, source, source[kept], place[kept], target_index]
        plan += [x for rows in attended for x in (rows.place, rows.seen, rows.before) if x is not None]
        tokens, positions, place, source, keep, kept_place, target_index, *sent = send_all(plan, self.device)
        for rows in attended:
            rows.place = sent.pop(0)
            if rows.seen is not None:
                rows.seen, rows.before = sent.pop(0), sent.pop(0)
        return Packed(
            ids=torch.cat([self.prompt_ids, self.response_ids], dim=1).flatten().index_select(0, tokens),
            positions=positions,
            place=place,
            source=source,
            num_rows=len(fed),
            width=width,
            keep=keep,
            kept_place=kept_place,
            targets=self.response_ids.flatten().index_select(0, target_index),
            target_index=target_index,
            shape=self.response_ids.shape,
            groups=attended,
        )


def pad_left(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token ids (B, L), long, and their mask (B, L), bool, padded on the left to the longest row."""
    width = max(map(len, rows), default=0)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for number, row in enumerate(rows):
        ids[number, width - len(row) :] = torch.tensor(row, dtype=torch.long)
        mask[number, width - len(row) :] = True
    return ids, mask


def group_equal(prompts: Iterable[Hashable]) -> Tensor:
    """A group number for each prompt (B,), on the host: the same for equal ones.

    >>> group_equal(["a", "b", "a"])
    tensor([0, 1, 0])
    """
    first: dict[Hashable, int] = {}
    return torch.tensor([first.setdefault(prompt, i) for i, prompt in enumerate(prompts)], dtype=torch.long)


def leaders(groups: Tensor) -> Tensor:
    """The first row of the group of each row (B,).

    >>> leaders(torch.tensor([7, 7, 2, 7]))
    tensor([0, 0, 2, 0])
    """
    return (groups.unsqueeze(1) == groups).int().argmax(dim=1)


@dataclass
class Rows:
    """Neighbouring tokens of the sequence whose attention is computed together, as `count` rows padded to `width`.

    `tokens` are theirs, and `place` where each lies when the rows are padded, as in `Packed`. Rows that are the ends of longer
    ones, responses behind shared prompts, have `seen` (count * L,), the indices of all tokens of the longer rows, and `before`
    (count,), how many of these precede the first token of the row.
    """

    first: int
    count: int
    width: int
    tokens: slice
    place: Tensor
    seen: Tensor | None = None
    before: Tensor | None = None
    biases: dict[Any, Tensor] = field(default_factory=dict)  # by window and type, for all layers

    def bias(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """The bias (count, 1, width, L) by which a token sees, of the longer rows, itself and `window - 1` or all before it."""
        if (window, dtype) not in self.biases:
            assert self.seen is not None
            assert self.before is not None
            columns = torch.arange(len(self.seen) // self.count, device=self.seen.device)
            distance = self.before[:, None, None] + columns[: self.width, None] - columns
            seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            self.biases[window, dtype] = as_bias(seen.unsqueeze(1), dtype)
        return self.biases[window, dtype]


@dataclass
class Packed:
    """Prompts and responses in one sequence; only tokens that a prediction needs.

    `ids`, `positions` (N,); `place` (M,) = row * width + position: where a token lies when the rows are padded to `width`, and
    `source` (M,) which of the N it is; `keep` (K,) the indices of the tokens that predict the K response tokens `targets`, row by
    row, and `kept_place` (K,) their places; `target_index` (K,) the places of the targets in the responses (B, T), whose shape is
    `shape`, as if those were one row; `groups`: the rows whose attention is computed together; `support` (K, S) as in TokenBatch.
    """

    ids: Tensor
    positions: Tensor
    place: Tensor
    source: Tensor
    num_rows: int
    width: int
    keep: Tensor
    kept_place: Tensor
    targets: Tensor
    target_index: Tensor
    shape: torch.Size
    groups: list[Rows]
    support: Tensor | None = None

    def gather(self, x: Tensor) -> Tensor:
        """The elements (K, ...) of `x` (B, T, ...) that belong to the targets."""
        return x.flatten(0, 1).index_select(0, self.target_index)

    def scatter(self, x: Tensor) -> Tensor:
        """(B, T, ...): the elements of `x` (K, ...) where the targets are, 0 elsewhere."""
        flat = x.new_zeros(self.shape.numel(), *x.shape[1:])
        return flat.index_copy(0, self.target_index, x).unflatten(0, self.shape)

    def pad(self, x: Tensor) -> Tensor:
        """(num_rows, width): the elements of `x` (N,) in rows padded on the right with zeros."""
        rows = x.new_zeros(self.num_rows * self.width).index_copy(0, self.place, x.index_select(0, self.source))
        return rows.view(self.num_rows, self.width)


def _share_prompts(fed: Tensor, num_prompt: int, leader: Tensor, together: int) -> tuple[Tensor, Tensor, list[Rows]]:
    """The computed tokens (N,) among the columns of all rows, prompts before responses; of each token of the rows (M,) which of
    these it is; and their groups."""
    is_own = leader == torch.arange(len(fed))
    columns = torch.arange(fed.numel()).view_as(fed)
    prompts, responses = fed[:, :num_prompt] & is_own.unsqueeze(1), fed[:, num_prompt:]
    tokens = torch.cat([columns[:, :num_prompt][prompts], columns[:, num_prompt:][responses]])
    number = torch.empty_like(columns)
    number.view(-1)[tokens] = torch.arange(len(tokens))
    number[:, :num_prompt] = number[leader, :num_prompt]
    source, lengths = number[fed], responses.sum(dim=1)
    rows, before = source.split(fed.sum(dim=1).tolist()), fed[:, :num_prompt].sum(dim=1)
    groups, longer = _group_rows(prompts.sum(dim=1)[is_own], together), lengths.nonzero()[:, 0]
    for ends in _group_rows(lengths[longer], together, start=int(prompts.sum())):
        numbers = longer[ends.first : ends.first + ends.count]
        seen = pad_sequence([rows[i] for i in numbers.tolist()], batch_first=True)  # no token sees what pads it
        groups.append(replace(ends, seen=seen.flatten(), before=before[numbers]))
    return tokens, source, groups


def _group_rows(lengths: Tensor, together: int, start: int = 0) -> list[Rows]:
    """The groups of rows of these lengths (B,) which follow each other from token `start` on."""
    groups = []
    for first in range(0, len(lengths), together):
        part = lengths[first : first + together]
        width, total = int(part.max()), int(part.sum())
        place = (torch.arange(width) < part.unsqueeze(1)).flatten().nonzero()[:, 0]
        groups.append(Rows(first, len(part), width, slice(start, start + total), place))
        start += total
    return groups


# -- copies between the host and a GPU, with as few waits as there can be; on a CPU they return what they are given


def send(x: Tensor, device: torch.device) -> Tensor:
    """The CPU tensor `x` on the device; the host does not wait for the device, which may be busy.

    Torch would copy columns of a wider tensor through memory that is not pinned, and wait.
    """
    if device.type != "cuda":
        return x.to(device)
    return x.contiguous().pin_memory().to(device, non_blocking=True)


def send_all(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """As `send`, for one-dimensional tensors of one dtype, in one copy."""
    if device.type != "cuda":
        return [x.to(device) for x in tensors]
    return list(send(torch.cat(list(tensors)), device).split([len(x) for x in tensors]))


def fetch(*tensors: Tensor) -> list[Tensor]:
    """The tensors on the CPU, all after one wait."""
    found = [x.to("cpu", non_blocking=x.device.type == "cuda") for x in tensors]
    for device in {x.device for x in tensors if x.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()
    return found
