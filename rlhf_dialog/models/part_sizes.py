"""How many rows a phase computes together: as many as were asked for, and fewer once a GPU has no memory for them.

It loads no torch: a process that has not loaded it fills no GPU.
"""

import gc
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

logger = logging.getLogger(__name__)
R = TypeVar("R")
GENERATION, REFERENCE, UPDATE, EVALUATION = "generation", "reference", "update", "evaluation"
KEYS = {  # that set the size of a phase
    GENERATION: "per_device_rollout_size",
    REFERENCE: "per_device_microbatch_size",
    UPDATE: "per_device_microbatch_size",
}
FULL, ONE_ROW = "the GPU has no memory left", "one row at a time"
OTHER_TEXTS = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")  # of errors that are not OutOfMemoryError


class PartSizes:
    """The sizes of parts that had to become smaller, by phase; one object for all phases of a run.

    >>> sizes = PartSizes()
    >>> for attempt in sizes.tries("reference", 16):
    ...     with attempt:
    ...         columns = read_policy(policy, tokens, 1.0, attempt.rows)  # 16, or 8, or 4 ...
    >>> sizes.rows
    {'reference': 8}
    """

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def limit(self, phase: str, asked: int) -> int:
        """`asked`, or the smaller size that the phase has had to take."""
        return min(asked, self.rows.get(phase, asked))

    def lower(self, others: Mapping[str, int]) -> None:
        """Take over the sizes of a checkpoint or of another rank that are smaller."""
        smaller = {phase: rows for phase, rows in others.items() if rows < self.rows.get(phase, rows + 1)}
        if smaller:
            logger.info("rows at a time for which a GPU has memory: %s", smaller)
        self.rows |= smaller

    def tries(self, phase: str, asked: int, fixed: bool = False) -> Iterator["Attempt"]:
        """Attempts to compute `limit(phase, asked)` rows at a time, or the half, the quarter ... until one fits.

        Each is entered by the caller and begins without the tensors of the one before, but for those that the caller holds. The
        size that fits stays the limit of the phase. Out of memory at one row, or where the size is `fixed`, is raised.
        """
        first = rows = self.limit(phase, asked)
        lack = ""
        while True:
            attempt = Attempt(phase, rows, fixed)
            yield attempt
            if attempt.fitted:
                break
            lack = attempt.lack
            gc.collect()  # now that the error is gone
            sys.modules["torch"].cuda.empty_cache()
            rows //= 2
        if rows < first:
            self.rows[phase] = rows
            key = f"; to begin with it, set {KEYS[phase]}: {rows}" if phase in KEYS else ""
            text = "%s: no GPU memory for %d rows at a time (%s); from here on it computes %d%s"
            logger.warning(text, phase, first, lack, rows, key)

    def in_parts(self, phase: str, asked: int, items: Sequence[Any], compute: Callable[[Any], R]) -> list[R]:
        """What `compute` returns for each part of the items (one, if there are none); a part that does not fit is divided."""
        results: list[R] = []
        while items or not results:
            size = min(asked, max(len(items), 1))
            for attempt in self.tries(phase, size):
                with attempt:
                    result = compute(items[: attempt.rows])
            results.append(result)
            items = items[self.limit(phase, size) :]
        return results


class Attempt:
    """A block that computes `rows` rows at a time; out of memory ends it without an error where fewer rows can be tried."""

    def __init__(self, phase: str, rows: int, fixed: bool):
        self.phase = phase
        self.rows = rows
        self.fixed = fixed
        self.fitted = False
        self.lack = ""  # the bytes that were asked for and free

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        if error is None:
            self.fitted = True
        if not isinstance(error, Exception) or not lacks_memory(error):
            return False
        if self.rows == 1:
            error.add_note(self.phase)
            error.add_note(ONE_ROW)
        if self.fixed or self.rows == 1:
            return False
        self.lack = _describe_bytes(error)
        for one in _chain(error):  # whose frames hold tensors until they are collected
            traceback.clear_frames(one.__traceback__)
        return True


def lacks_memory(error: BaseException) -> bool:
    """Whether the error, or one that it was raised for (as by a reward that catches all), is a full GPU's."""
    torch = sys.modules.get("torch")
    return torch is not None and any(
        isinstance(one, torch.OutOfMemoryError)
        or (isinstance(one, RuntimeError) and any(text in str(one) for text in OTHER_TEXTS))
        for one in _chain(error)
    )


def describe_full_gpu(error: BaseException) -> str:
    """In which phase (the first note of the error) a GPU had no memory, and how many bytes were asked for and free."""
    notes = [note for one in [*_chain(error)][::-1] for note in getattr(one, "__notes__", ())]
    phase = f", in the phase '{notes[0]}'" if notes else ""
    return f"{FULL}{phase}{f', {ONE_ROW}' if ONE_ROW in notes else ''} ({_describe_bytes(error)})"


def _describe_bytes(error: BaseException) -> str:
    text = "\n".join(map(str, _chain(error)))
    asked, free = (re.search(pattern, text) for pattern in (r"allocate ([\d.]+ \w+)", r"([\d.]+ \w+) is free"))
    sizes = [f"{size[1]} {what}" for size, what in ((asked, "asked for"), (free, "free")) if size]
    return ", ".join(sizes) or "no sizes are known"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those for which it was raised, the newest first."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or one.__context__
