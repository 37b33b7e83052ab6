"""Whole dialogues, the newest of which are in memory and the older ones on disk. N turns; a column is an array (N, ...)."""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save, save_file

from rlhf_dialog.errors import UserError

Columns = dict[str, NDArray[Any]]


class EpisodeStack:
    """The newest whole dialogues, `capacity` turns at most, but always the last dialogue; each has the same columns.

    The newest of them, `in_memory` turns at most, are in memory. Older ones are rows of a temporary SQLite file, which goes
    with this object or with the process.
    """

    def __init__(self, capacity: int, in_memory: int):
        self.capacity, self.in_memory = capacity, in_memory
        self._added = self._turns = self._turns_in_memory = 0
        # by the number of a dialogue, from the first one ever, the oldest first
        self._lengths: dict[int, int] = {}
        self._memory: dict[int, Columns] = {}  # of the newest of them
        self._disk: sqlite3.Connection | None = None

    def __len__(self) -> int:
        return self._turns

    @property
    def ends(self) -> NDArray[np.int64]:
        """For each dialogue the row after its last turn, (K,)."""
        return self.lengths.cumsum()

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Turns of each dialogue, (K,)."""
        return np.array(list(self._lengths.values()), dtype=np.int64)

    def append(self, columns: Columns) -> None:
        """Copy a dialogue; the oldest ones make room. Raises UserError, and keeps all, when the disk is full."""
        self._memory[self._added] = {name: np.array(column) for name, column in columns.items()}
        length = self._lengths[self._added] = len(next(iter(columns.values())))
        self._added += 1
        self._turns += length
        self._turns_in_memory += length
        while self._turns > self.capacity and len(self._lengths) > 1:
            self._drop(next(iter(self._lengths)))
        while self._turns_in_memory > self.in_memory:
            number, oldest = next(iter(self._memory.items()))
            self._run("INSERT INTO dialogues VALUES (?, ?)", number, save(oldest))
            self._forget(number)

    def rows(self, indices: Any, names: Iterable[str] = ()) -> Columns:
        """The turns of these rows (N,), all columns or those named."""
        indices, ends = np.asarray(indices), self.ends
        needed, places = np.unique(np.searchsorted(ends, indices, side="right"), return_inverse=True)
        lengths = self.lengths[needed]
        rows = indices - (ends[needed] - lengths.cumsum())[places]  # of the needed dialogues, one after the other
        first = self._added - len(self._lengths)
        dialogues = [self._dialogue(first + place) for place in needed.tolist()]
        return {name: np.concatenate([x[name] for x in dialogues])[rows] for name in names or dialogues[0]}

    def save(self, path: Path, more: Sequence[Columns], extra: Columns) -> None:
        """Write all turns, then those of `more`, and `extra` as they are, as one safetensors file; all are in memory then."""
        dialogues = [*map(self._dialogue, self._lengths), *more]
        names = dialogues[0] if dialogues else ()
        save_file({name: np.concatenate([x[name] for x in dialogues]) for name in names} | extra, path)

    def _dialogue(self, number: int) -> Columns:
        if number in self._memory:
            return self._memory[number]
        return load(self._run("SELECT columns FROM dialogues WHERE number = ?", number).fetchone()[0])

    def _drop(self, number: int) -> None:
        if number in self._memory:
            self._forget(number)
        else:
            self._run("DELETE FROM dialogues WHERE number = ?", number)
        self._turns -= self._lengths.pop(number)

    def _forget(self, number: int) -> None:
        """Take the dialogue out of memory."""
        del self._memory[number]
        self._turns_in_memory -= self._lengths[number]

    def _run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        """Raises UserError when the disk is full or the file cannot be read."""
        try:
            if self._disk is None:
                self._disk = sqlite3.connect("", isolation_level=None)  # a file that has no name in TMPDIR
                self._disk.execute("CREATE TABLE dialogues (number INTEGER PRIMARY KEY, columns BLOB)")
            return self._disk.execute(statement, values)
        except sqlite3.Error as error:
            raise UserError(
                f"the older dialogues of the replay, in a temporary file: {error}; free some space, set TMPDIR to a folder "
                "on another disk, or keep fewer turns (capacity)"
            ) from error
