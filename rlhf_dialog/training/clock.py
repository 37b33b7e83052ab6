"""The seconds that the parts of an iteration take."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rlhf_dialog.models.part_sizes import lacks_memory


class Clock:
    """Adds up seconds by name. On a GPU a block is timed by two CUDA events, for which only reading `seconds` waits."""

    def __init__(self, device: torch.device):
        self.device = device
        self.started = time.perf_counter()
        self._seconds: dict[str, float] = defaultdict(float)
        self._open: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []  # whose time is not read yet

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Count the time of the block as `name`, which is also the note of an error for want of memory."""
        try:
            with self._time(name):
                yield
        except Exception as error:
            if lacks_memory(error):
                error.add_note(name)
            raise

    @contextmanager
    def _time(self, name: str) -> Iterator[None]:
        if self.device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            yield
            end.record()
            self._open.append((name, start, end))
        else:
            start_time = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - start_time

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each name so far; on a GPU this waits, once, until the work of all blocks is done."""
        if self._open:
            torch.cuda.synchronize(self.device)
        for name, start, end in self._open:
            self._seconds[name] += start.elapsed_time(end) / 1000
        self._open.clear()
        return self._seconds

    @property
    def elapsed(self) -> float:
        """The seconds since the clock was made."""
        return time.perf_counter() - self.started
