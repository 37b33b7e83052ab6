"""What a metrics.jsonl says: its lines, what is wrong with one, and what stays of it before a run goes on."""

import json
import math
import sys
from collections.abc import Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.errors import UserError

METRICS = "metrics.jsonl"
REMEDY = "correct or remove that line, or restore the file from a copy"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, without a last line that a kill left incomplete.

    Raises UserError with the first line that is not of this program, or not of the next iteration.
    """
    rows, fault = scan_metrics(path)
    if fault:
        raise UserError(f"{path}: {fault}; {REMEDY}")
    return rows


def scan_metrics(path: Path) -> tuple[list[dict[str, Any]], str]:
    """The lines of iterations 1, 2, 3 ..., and what is wrong with the line after them, such as `line 7 is not a line of
    metrics`; empty if nothing is."""
    *lines, last = path.read_bytes().split(b"\n")
    while lines and not (lines[-1] + last).strip():
        lines.pop()  # empty lines at the end
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        row = _row(line)
        if row is None:
            return rows, f"line {number} is not a line of metrics"
        if row["iteration"] != number:
            return rows, f"line {number} is of iteration {row['iteration']}, not {number}"
        rows.append(row)
    row = _row(last)
    return ([*rows, row] if row and row["iteration"] == len(rows) + 1 else rows), ""


def _row(line: bytes) -> dict[str, Any] | None:
    """The metrics of a line; None if it is not UTF-8, not JSON, has no iteration, or has a value that is neither null nor a
    number, or is larger than any number of 64 bits."""
    try:
        row = json.loads(line.decode("utf-8"))
        numbers = [x for x in row.values() if x is not None]
        is_whole = type(row["iteration"]) is int and all(isinstance(x, int | float) for x in numbers)
        return row if is_whole and all(isinstance(x, float) or abs(x) <= sys.float_info.max for x in numbers) else None
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def cut_metrics(path: Path, iteration: int) -> None:
    """Remove the lines after `iteration`, atomically, since a resumed run will write them again."""
    if not path.exists():
        return
    rows, fault = scan_metrics(path)
    if len(rows) < iteration:
        raise UserError(f"{path}: {fault or f'line {len(rows) + 1} is missing'}; {REMEDY}")
    replace_text(path, "".join(json.dumps(row) + "\n" for row in rows[:iteration]))


def rank_file(path: Path, rank: int) -> Path:
    """That of a process of a watched run: `metrics.jsonl` of rank 0, `metrics.1.jsonl` of rank 1."""
    return path.with_suffix(f".{rank}{path.suffix}") if rank else path


def rank_files(path: Path) -> list[Path]:
    """The file of rank 0, and those of the other ranks that are there."""
    names = [one.name.split(".")[-2] for one in path.parent.glob(f"{path.stem}.*{path.suffix}")]
    return [path, *(rank_file(path, rank) for rank in sorted(int(name) for name in names if name.isdecimal()))]


def join_ranks(ranks: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of several ranks as one run: `episodes` of all, of other numbers the means, weighted by each row's replies."""
    counted = [
        [(row, (row.get("episodes") or 0) - (before.get("episodes") or 0)) for before, row in pairwise([{}, *rows])]
        for rows in ranks
    ]
    joined: list[dict[str, Any]] = []
    episodes = 0
    for pairs in zip_longest(*counted):
        there = [pair for pair in pairs if pair]
        episodes += sum(replies for _, replies in there)
        row: dict[str, Any] = {}
        for name in dict.fromkeys(name for one, _ in there for name in one):
            known = [(one[name], replies) for one, replies in there if one.get(name) is not None]
            total = sum(replies for _, replies in known)
            row[name] = math.fsum(value * replies for value, replies in known) / total if total else None
        joined.append(row | {"iteration": len(joined) + 1, "episodes": episodes})
    return joined
