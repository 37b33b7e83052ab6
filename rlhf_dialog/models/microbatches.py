"""Which episodes one forward pass sees. B episodes, P prompt tokens, T response tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_dialog.models.device_copies import fetch, send
from rlhf_dialog.models.masks import last_token


@dataclass(frozen=True)
class Microbatch:
    """Which episodes one forward pass sees, and which columns of their prompts and responses are not all padding.

    `rows` are for tensors on the device, `host_rows` the same ones for tensors on the host.
    """

    rows: Tensor
    prompt: slice
    response: slice
    host_rows: Tensor


def microbatches(
    prompt_mask: Tensor,
    response_mask: Tensor,
    rows: Tensor,
    size: int,
    device: torch.device | None = None,
    prompt_numbers: Tensor | None = None,
) -> Iterator[Microbatch]:
    """Divide `rows` (N,) into microbatches of at most `size` episodes of similar length, without needless padding.

    Masks and rows may lie on the host; `Microbatch.rows` are put on `device`, by default that of the masks. Rows with the same
    of `prompt_numbers` (B,), on the host, come into the same microbatch, unless they are more than `size`.
    """
    device = device or prompt_mask.device
    prompt_mask, response_mask, rows = fetch(prompt_mask, response_mask, rows)
    lengths = prompt_mask[rows].sum(dim=1) + last_token(response_mask[rows]) + 1
    order = rows[lengths.argsort(stable=True)]
    parts = order.split(size) if prompt_numbers is None else _whole_groups(order, prompt_numbers[order], size)
    all_sent = send(torch.cat(parts), device).split([len(part) for part in parts])
    for part, sent in zip(parts, all_sent, strict=True):
        start = int(prompt_mask[part].any(dim=0).int().argmax())
        width = int(last_token(response_mask[part]).max()) + 1
        yield Microbatch(sent, slice(start, None), slice(0, width), part)


def _whole_groups(rows: Tensor, numbers: Tensor, size: int) -> list[Tensor]:
    """`rows` (N,) in parts of at most `size`: those with the same of `numbers` (N,) side by side, in one part if they fit."""
    groups: dict[int, list[int]] = {}
    for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
        groups.setdefault(number, []).append(row)
    parts: list[list[int]] = [[]]
    for group in groups.values():
        for start in range(0, len(group), size):
            piece = group[start : start + size]
            if len(parts[-1]) + len(piece) > size:
                parts.append([])
            parts[-1] += piece
    return [torch.tensor(part) for part in parts]
