"""Whole dialogues, the newest turns of which are in memory and the older ones on disk. N turns; a column is an array (N, ...)."""

import json
import math
import shutil
import tempfile
import weakref
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.errors import UserError

Columns = dict[str, NDArray[Any]]
Place = tuple[int, np.dtype[Any], tuple[int, ...]]  # byte, dtype, shape
Stream = tuple[np.dtype[Any], tuple[int, ...], Iterable[NDArray[Any]]]  # dtype, shape, and the rows in pieces
SAFETENSORS_ORDER = ["uint64", "int64", "float64", "float32", "uint32", "int32", "float16", "uint16", "int16", "int8"]
SAFETENSORS_ORDER += ["uint8", "bool"]
AT_ONCE = 1000  # dialogues


@dataclass(frozen=True)
class DiskBlock:
    """Turns on disk: those from `first` up to `last`, which is excluded; turns are numbered from the first one ever."""

    path: Path
    first: int
    last: int
    places: dict[str, Place]

    def columns(self) -> Columns:
        """Memory maps (last - first, ...). Raises UserError when the file cannot be read."""
        try:
            mapped = np.memmap(self.path, np.uint8, "r")
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read: {error}; go on from the last checkpoint") from error
        return {name: np.ndarray(shape, dtype, mapped, byte) for name, (byte, dtype, shape) in self.places.items()}


class EpisodeStack:
    """The newest whole dialogues, `capacity` turns at most, but always the last dialogue; each has the same columns.

    At most `in_memory` turns, the newest ones, are in memory. When there are more, the oldest of them are written as a block
    of whole dialogues, so that half is left: a safetensors file in a temporary folder. A block is removed when all of its
    dialogues have made room, the folder with this object or with the process.
    """

    def __init__(self, capacity: int, in_memory: int):
        self.capacity, self.in_memory = capacity, in_memory
        self._first = self._spilled = self._base = 0  # numbers of turns: the oldest; in memory the oldest, and row 0's
        self._ends, self._known_ends = list[int](), np.zeros(0, dtype=np.int64)
        self._columns: Columns = {}
        self._blocks: list[DiskBlock] = []
        self._folder: Path | None = None

    def __len__(self) -> int:
        """Number of turns."""
        return self._end - self._first

    @property
    def ends(self) -> NDArray[np.int64]:
        """For each dialogue the row after its last turn, (K,)."""
        if not len(self._known_ends):
            self._known_ends = np.array(self._ends, dtype=np.int64) - self._first
        return self._known_ends

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Turns of each dialogue, (K,)."""
        return np.diff(self.ends, prepend=0)

    def append(self, columns: Columns) -> None:
        """Copy a dialogue; the oldest ones make room. Raises UserError, and keeps all, when the disk is full."""
        if self._columns and {*columns} != {*self._columns}:
            raise UserError(
                f"the dialogues that were kept have the columns {sorted(self._columns)}, but a new one has "
                f"{sorted(columns)}: the saved replay is damaged, or is of another policy; begin again"
            )
        self._ends.append(self._put(columns))
        if len(self) > self.capacity:
            self._make_room()
        self._known_ends = self._known_ends[:0]
        if self._end - self._spilled > self.in_memory:
            self._spill(self._ends[bisect_left(self._ends, self._end - self.in_memory // 2)])

    def rows(self, indices: Any, names: Iterable[str] = ()) -> Columns:
        """The turns of these rows (N,), all columns or those named. Raises IndexError for a row that is not there."""
        numbers = np.asarray(indices) + self._first
        if ((numbers < self._first) | (numbers >= self._end)).any():
            raise IndexError(f"found rows {indices}, wanted rows from 0 to {len(self) - 1}")
        kept = {name: self._columns[name] for name in names or self._columns}
        in_memory = numbers >= self._spilled
        if in_memory.all():
            return {name: column[numbers - self._base] for name, column in kept.items()}
        result = {name: np.empty((len(numbers), *column.shape[1:]), column.dtype) for name, column in kept.items()}
        for name, column in result.items():
            column[in_memory] = kept[name][numbers[in_memory] - self._base]
        for block in self._blocks:
            here = (numbers >= block.first) & (numbers < block.last)
            block_columns = block.columns() if here.any() else {}
            for name in result.keys() & block_columns.keys():
                result[name][here] = block_columns[name][numbers[here] - block.first]
        return result

    def save(self, path: Path, more: Sequence[Columns], extra: Columns) -> None:
        """Write all turns, after them those of `more`, and `extra` as they are, as one safetensors file. Raises OSError."""
        count = len(self) + sum(len(column) for columns in more for column in list(columns.values())[:1])
        heads = self._columns or (more or [{}])[0]
        streams = {name: (x.dtype, (count, *x.shape[1:]), self._stream(name, more)) for name, x in heads.items()}
        write_streams(path, streams | {name: (column.dtype, column.shape, [column]) for name, column in extra.items()})

    @property
    def _end(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _put(self, columns: Columns) -> int:
        """Copy into memory; returns the number of the turn after them."""
        begin = self._end - self._base
        stop = begin + len(next(iter(columns.values())))
        kept = self._columns or columns
        fits = all(np.result_type(column, columns[name]) == column.dtype for name, column in self._columns.items())
        if not self._columns or not fits or stop > len(next(iter(kept.values()))):
            used = slice(self._spilled - self._base, begin)
            size = (stop - used.start) * 3 // 2
            begin, stop, self._base = begin - used.start, stop - used.start, self._spilled
            for name, column in kept.items():
                grown = np.empty((size, *column.shape[1:]), np.result_type(column, columns[name]))
                grown[:begin] = column[used]
                self._columns[name] = grown
        for name, column in self._columns.items():
            column[begin:stop] = columns[name]
        return self._base + stop

    def _make_room(self) -> None:
        """Drop the oldest dialogues, but never the last one, and the blocks of which nothing is left."""
        gone = min(bisect_left(self._ends, self._end - self.capacity) + 1, len(self._ends) - 1)
        self._first = self._ends[gone - 1] if gone else self._first
        self._spilled = max(self._spilled, self._first)
        del self._ends[:gone]
        while self._blocks and self._blocks[0].last <= self._first:
            self._blocks.pop(0).path.unlink(missing_ok=True)

    def _in_memory(self, last: int) -> Columns:
        return {name: column[self._spilled - self._base : last - self._base] for name, column in self._columns.items()}

    def _stream(self, name: str, more: Sequence[Columns]) -> Iterator[NDArray[Any]]:
        for block in self._blocks:
            yield block.columns()[name][max(0, self._first - block.first) :]
        yield from (columns[name] for columns in (self._in_memory(self._end), *more) if name in columns)

    def _spill(self, last: int) -> None:
        """Write the turns in memory that come before this one as a block. Raises UserError when the disk is full."""
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="rlhf_dialog_dialogues_"))
                weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            path = self._folder / f"{self._spilled}.safetensors"
            streams = {name: (column.dtype, column.shape, [column]) for name, column in self._in_memory(last).items()}
            self._blocks.append(DiskBlock(path, self._spilled, last, write_streams(path, streams)))
        except OSError as error:
            raise UserError(
                f"{self._folder or 'a temporary folder'}: the older dialogues cannot be written: {error}; free some space, "
                "set TMPDIR to a folder on another disk, or keep fewer turns (capacity)"
            ) from error
        self._spilled = last


def write_streams(path: Path, streams: Mapping[str, Stream]) -> dict[str, Place]:
    """Write a safetensors file piece by piece, byte for byte as `safetensors.numpy.save_file` writes it from memory.

    Returns where each column lies. Raises OSError, and leaves no file.
    """
    names = sorted(streams, key=lambda name: (SAFETENSORS_ORDER.index(streams[name][0].name), name))
    header, begins, stop = {}, dict[str, int](), 0
    for name in names:
        dtype, shape, _ = streams[name]
        code = "BOOL" if dtype.kind == "b" else f"{dtype.kind.upper()}{8 * dtype.itemsize}"
        begins[name], stop = stop, stop + dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [begins[name], stop]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    try:
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                for piece in streams[name][2]:
                    file.write(np.ascontiguousarray(piece, streams[name][0]).data)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return {name: (8 + len(text) + begins[name], *streams[name][:2]) for name in names}


def split_slices(slices: Mapping[str, Any], lengths: NDArray[np.int64]) -> Iterator[Columns]:
    """The dialogues of these lengths from columns of an open safetensors file (`get_slice`), of which little is read at once.

    Raises ValueError when a column has another number of turns.
    """
    if any(column.get_shape()[0] != lengths.sum() for column in slices.values()):
        raise ValueError(f"its columns do not have the {lengths.sum()} turns of its dialogues")
    stops = lengths.cumsum().tolist()
    for first in range(0, len(lengths), AT_ONCE):
        ends = stops[first : first + AT_ONCE]
        begin = stops[first - 1] if first else 0
        read = {name: column[begin : ends[-1]] for name, column in slices.items()}
        for start, stop in zip([begin, *ends], ends, strict=False):
            yield {name: column[start - begin : stop - begin] for name, column in read.items()}
