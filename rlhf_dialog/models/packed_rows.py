"""Which tokens of a batch are computed: no padding, and the prompt that several responses share once.

Which token lies where is decided on the host: the masks given to `pack` may lie there, while the ids are on a GPU. Then the host
never waits for the GPU; masks on the GPU are fetched.

B rows, N computed tokens, M tokens of all rows (more than N where prompts are shared), L tokens of the longest row.
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlhf_dialog.models.device_copies import fetch, send_all
from rlhf_dialog.models.masks import last_token

ROWS_TOGETHER = 4  # on a CPU: rows of similar length make little padding in the attention


@dataclass(frozen=True)
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
    masks: dict[int | None, Tensor] = field(default_factory=dict)  # by window, for all layers

    @property
    def plan(self) -> list[Tensor]:
        """What is planned on the host and used on the device."""
        return [self.place] if self.seen is None or self.before is None else [self.place, self.seen, self.before]

    def with_plan(self, sent: Iterator[Tensor]) -> "Rows":
        """The rows with a copy of their plan, the next tensors of `sent`."""
        if self.seen is None:
            return replace(self, place=next(sent))
        return replace(self, place=next(sent), seen=next(sent), before=next(sent))

    def mask(self, window: int | None) -> Tensor:
        """Which tokens of the longer rows each token sees (count, 1, width, L): itself and `window - 1` or all before it."""
        if window not in self.masks:
            assert self.seen is not None
            assert self.before is not None
            columns = torch.arange(len(self.seen) // self.count, device=self.seen.device)
            distance = self.before[:, None, None] + columns[: self.width, None] - columns
            seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            self.masks[window] = seen.unsqueeze(1)
        return self.masks[window]


@dataclass
class Packed:
    """Prompts and responses in one sequence; only tokens that a prediction needs.

    `ids`, `positions` (N,); `place` (M,) = row * width + position: where a token lies when the rows are padded to `width`, and
    `source` (M,) which of the N it is; `keep` (K,) the indices of the tokens that predict the K response tokens `targets`, row by
    row, and `kept_place` (K,) their places; `at` (K,) the places of the targets in the responses (B, T), whose shape is `shape`,
    as if those were one row; `groups`: the rows whose attention is computed together.
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
    at: Tensor
    shape: torch.Size
    groups: list[Rows]

    def gather(self, x: Tensor) -> Tensor:
        """The elements (K, ...) of `x` (B, T, ...) that belong to the targets."""
        return x.flatten(0, 1).index_select(0, self.at)

    def scatter(self, x: Tensor) -> Tensor:
        """(B, T, ...): the elements of `x` (K, ...) where the targets are, 0 elsewhere."""
        return x.new_zeros(self.shape.numel(), *x.shape[1:]).index_copy(0, self.at, x).unflatten(0, self.shape)

    def padded(self, x: Tensor) -> Tensor:
        """(num_rows, width): the elements of `x` (N,) in rows padded on the right with zeros."""
        rows = x.new_zeros(self.num_rows * self.width).index_copy(0, self.place, x.index_select(0, self.source))
        return rows.view(self.num_rows, self.width)


def pack(
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    response_ids: Tensor,
    response_mask: Tensor,
    prompt_numbers: Tensor | None = None,
) -> Packed:
    """Prompts (B, P) and responses (B, T) without their padding; the last response token of a row predicts nothing.

    Rows with the same of `prompt_numbers` (B,), on the host, share their prompt; by default none does.
    """
    prompt_mask, response_mask = fetch(prompt_mask, response_mask)
    columns = torch.arange(response_mask.shape[1])
    fed = torch.cat([prompt_mask, columns < last_token(response_mask).unsqueeze(1)], dim=1)
    newest = fed.flatten().cumsum(0).view_as(fed) - 1  # of each column: the last token of the rows that is fed so far
    kept = newest[:, prompt_ids.shape[1] - 1 : -1][response_mask]
    at = response_mask.flatten().nonzero()[:, 0]
    return _packed(torch.cat([prompt_ids, response_ids], dim=1), fed, kept, response_ids, at, prompt_numbers)


def pack_prompts(prompt_ids: Tensor, prompt_mask: Tensor) -> Packed:
    """Prompts (B, P) alone; `keep` is the last token of each, `targets` is empty."""
    (prompt_mask,) = fetch(prompt_mask)
    nothing = torch.empty(0, dtype=torch.long)
    return _packed(prompt_ids, prompt_mask, prompt_mask.sum(dim=1).cumsum(dim=0) - 1, prompt_ids[:, :0], nothing)


def numbers_of(prompts: Iterable[Hashable]) -> Tensor:
    """A number for each prompt (B,), on the host: the same for equal ones.

    >>> numbers_of(["a", "b", "a"])
    tensor([0, 1, 0])
    """
    first: dict[Hashable, int] = {}
    return torch.tensor([first.setdefault(prompt, i) for i, prompt in enumerate(prompts)], dtype=torch.long)


def leaders(prompt_numbers: Tensor) -> Tensor:
    """The first row with the number of each row (B,).

    >>> leaders(torch.tensor([7, 7, 2, 7]))
    tensor([0, 0, 2, 0])
    """
    return (prompt_numbers.unsqueeze(1) == prompt_numbers).int().argmax(dim=1)


def _packed(
    ids: Tensor, fed: Tensor, kept: Tensor, response_ids: Tensor, at: Tensor, prompt_numbers: Tensor | None = None
) -> Packed:
    """From the ids on their device, and from what the host knows: the tokens of the rows (B, L), which of these M are kept for
    the targets (K,), the targets' places (K,), and which rows share a prompt."""
    together = ROWS_TOGETHER if ids.device.type == "cpu" else len(fed)
    num_prompt = fed.shape[1] - response_ids.shape[1]
    if prompt_numbers is None or len(prompt_numbers.unique()) == len(fed):
        tokens = fed.flatten().nonzero()[:, 0]
        source, groups = torch.arange(len(tokens)), _rows(fed.sum(dim=1), together)
    else:
        tokens, source, groups = _shared(fed, num_prompt, leaders(prompt_numbers), together)
    positions, width = fed.cumsum(dim=1) - 1, int(fed.sum(dim=1).max())
    place = (torch.arange(len(fed)).unsqueeze(1) * width + positions)[fed]
    plan = [tokens, positions.flatten()[tokens], place, source, source[kept], place[kept], at]
    sent = send_all([*plan, *(x for rows in groups for x in rows.plan)], ids.device)
    tokens, positions, place, source, keep, kept_place, at, *of_groups = sent
    targets = response_ids.flatten().index_select(0, at)
    ids, shape, found = ids.flatten().index_select(0, tokens), response_ids.shape, iter(of_groups)
    groups = [rows.with_plan(found) for rows in groups]
    return Packed(ids, positions, place, source, len(fed), width, keep, kept_place, targets, at, shape, groups)


def _shared(fed: Tensor, num_prompt: int, leader: Tensor, together: int) -> tuple[Tensor, Tensor, list[Rows]]:
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
    groups, longer = _rows(prompts.sum(dim=1)[is_own], together), lengths.nonzero()[:, 0]
    for ends in _rows(lengths[longer], together, start=int(prompts.sum())):
        of = longer[ends.first : ends.first + ends.count]
        seen = pad_sequence([rows[i] for i in of.tolist()], batch_first=True)  # no token sees what pads it
        groups.append(replace(ends, seen=seen.flatten(), before=before[of]))
    return tokens, source, groups


def _rows(lengths: Tensor, together: int, start: int = 0) -> list[Rows]:
    """The groups of rows of these lengths (B,) which follow each other from token `start` on."""
    groups = []
    for first in range(0, len(lengths), together):
        some = lengths[first : first + together]
        width, total = int(some.max()), int(some.sum())
        place = (torch.arange(width) < some.unsqueeze(1)).flatten().nonzero()[:, 0]
        groups.append(Rows(first, len(some), width, slice(start, start + total), place))
        start += total
    return groups
