"""How long each stage of an iteration takes."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Adds up seconds by name; GPU work is counted in the block that started it.

    On a GPU a block leaves two events among its work, and the host does not wait for them before `seconds` is read.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.started = time.perf_counter()
        self._seconds: dict[str, float] = defaultdict(float)
        self._open: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []  # whose time is not read yet

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Count the time of the block as `name`."""
        if self.device.type == "cuda":
            start = self._event()
            yield
            self._open.append((name, start, self._event()))
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

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
