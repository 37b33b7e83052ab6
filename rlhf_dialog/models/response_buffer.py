"""What `respond` has written so far: on the device in columns, and on the host which tokens count.

The host asks the device only at a look, for everything at once; between two looks the rows that have ended go on unseen, and
what they write is masked in the end. B rows, b of them still written to, T tokens, V vocabulary, K kept tokens of a filter.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.device_copies import fetch, send


class ResponseBuffer:
    """The responses of B rows; `rows` (b,) are those to which `put` writes, `ids` (B, T) what was written, on the device."""

    def __init__(self, shape: torch.Size, pad_id: int, device: torch.device):
        self.pad_id, self.shape = pad_id, shape
        self.rows, self.host_rows = torch.arange(shape[0], device=device), torch.arange(shape[0])
        self.alive = torch.ones(shape[0], dtype=torch.bool)  # (b,), on the host
        self.read, self.mask = torch.full(shape, pad_id), torch.zeros(shape, dtype=torch.bool)  # (B, T), on the host
        self.seen = 0  # tokens at the last look
        self.kept: list[Tensor] = []  # bool (b, V), of each token since then: what a filter left
        self.ids = torch.full(shape, pad_id, device=device)
        self._columns: dict[str, Tensor] = {"ids": self.ids}
        self._written = 0

    def put(self, t: int, columns: dict[str, Tensor]) -> None:
        """Write token t of the rows: of each column (b, ...)."""
        for name, x in columns.items():
            if name not in self._columns:
                self._columns[name] = x.new_zeros(*self.shape, *x.shape[1:])
            self._columns[name][self.rows, t] = x
        self._written = t + 1

    def look(self, ended: Callable[[Tensor], Tensor]) -> Tensor:
        """Read what was written since the last look; returns which of the rows go on: bool (b,), on the host.

        `ended` says of ids (b, t) whether the newest token of each row ends its response. Raises RunStopped when the
        policy's predictions are not finite.
        """
        new = slice(self.seen, self._written)
        ids, logprobs = (self._columns[name][:, new].index_select(0, self.rows) for name in ("ids", "logprobs"))
        ids, finite, *counts = fetch(ids, logprobs.isfinite().all(), *(kept.sum(dim=1) for kept in self.kept))
        if not finite:
            raise RunStopped(
                "the policy's predictions are not finite (NaN or inf), so no token can be sampled; its weights are not "
                "usable: go back to an earlier checkpoint, with a lower learning rate"
            )
        self.read[self.host_rows, new] = ids
        for t in range(self.seen, self._written):
            self.mask[self.host_rows, t] = self.alive
            self.alive = self.alive & ~ended(self.read[self.host_rows, : t + 1])
        if self.kept:
            self._put_support(counts)
        self.seen = self._written
        return self.alive

    def written(self, since: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, mask and log-probabilities (B, n), on the host, of the tokens that were looked at after the first `since`."""
        new = slice(since, self.seen)
        (logprobs,) = fetch(self._columns["logprobs"][:, new])
        return self.read[:, new], self.mask[:, new], logprobs

    def _put_support(self, counts: list[Tensor]) -> None:
        """The kept ids of the new tokens, as wide as those that count need."""
        counted = self.mask[self.host_rows, self.seen : self._written]
        width = int(torch.stack(counts, dim=1)[counted].max())
        for t, kept in enumerate(self.kept, start=self.seen):
            x = ids_of(kept, width)
            if (column := self._columns.get("support")) is None:
                column = x.new_full((*self.shape, width), -1)
            elif width > column.shape[2]:
                column = pad(column, (0, width - column.shape[2]), value=-1)
            column[self.rows, t, :width] = x
            self._columns["support"] = column
        self.kept.clear()

    def keep_rows(self, rows: Tensor) -> Tensor:
        """Write no longer to the rows where `rows` (b,), on the host, is False; the indices of the others, on the device."""
        kept = send(rows.nonzero()[:, 0], self.rows.device)
        self.rows, self.host_rows, self.alive = self.rows.index_select(0, kept), self.host_rows[rows], self.alive[rows]
        return kept

    def columns(self) -> dict[str, Any]:
        """The columns of Responses, as long as the longest response, empty outside of the mask."""
        mask = self.mask[:, : int(self.mask.sum(dim=1).max())]
        truncated = torch.zeros(len(mask), dtype=torch.bool)
        truncated[self.host_rows] = self.alive
        device = self.rows.device
        found: dict[str, Any] = {"mask": send(mask, device), "truncated": send(truncated, device)}
        for name, x in self._columns.items():
            x, empty = x[:, : mask.shape[1]], {"ids": self.pad_id, "support": -1}.get(name, 0)
            found[name] = x.masked_fill_(~found["mask"].view(*mask.shape, *[1] * (x.dim() - 2)), empty)
        return found


def ids_of(kept: Tensor, width: int) -> Tensor:
    """The ids that are True in each row of `kept` (b, V), of which there are at most `width`, padded with -1: (b, width)."""
    order = kept.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, :width]
    return torch.where(kept.gather(1, order), order, -1)
