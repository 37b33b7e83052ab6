"""The processes of a run, one per device: which of them this one is, and how they exchange values. One process is a world too."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from rlhf_dialog.distributed.silence import notice_silence
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.models.part_sizes import describe_full_gpu, lacks_memory

T = TypeVar("T")
Items = TypeVar("Items", bound=Sequence[Any])
LOST = ("gloo", "Connection closed by peer", "Connection reset by peer", "NCCL", "Broken pipe")  # what torch then says


class OtherRankFailed(Exception):
    """The traceback, as text, of the process that failed: the `__cause__` of the error that the other processes raise."""


@dataclass(frozen=True)
class Failure:
    """A description of the exception that ended the work of one rank, in a form that can be sent to the others."""

    exit_code: int
    text: str
    trace: str

    @classmethod
    def describe(cls, error: Exception) -> "Failure":
        is_expected = isinstance(error, UserError | RunStopped)
        text = str(error) if is_expected else f"{type(error).__name__}: {error}"
        text = describe_full_gpu(error) if lacks_memory(error) and not isinstance(error, RunStopped) else text
        return cls(getattr(error, "exit_code", 1), text, "".join(traceback.format_exception(error)))

    def raise_for(self, prefix: str) -> None:
        kind = UserError if self.exit_code == UserError.exit_code else RunStopped
        raise kind(prefix + self.text) from OtherRankFailed(self.trace)


@dataclass(frozen=True)
class World:
    """The ranks of a run. All ranks call every method except `share` at the same point, and all get the same result.

    >>> world.sum(mask.sum())          # response tokens of all ranks
    >>> world.gather(len(rollout))     # [16, 15]: one of each rank
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only rank that writes files, asks questions and prints."""
        return self.rank == 0

    def share(self, items: Items) -> Items:
        """This rank's contiguous part of `items`; the parts of all ranks differ in size by at most one and cover all items."""
        return cast(Items, items[self.rank * len(items) // self.size : (self.rank + 1) * len(items) // self.size])

    def sum(self, x: Tensor) -> Tensor:
        """The sum of a tensor over all ranks; no gradient goes through it."""
        if self.size == 1:
            return x
        x = x.detach().clone()
        dist.all_reduce(x)
        return x

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """The sum over all ranks of each number, in float64."""
        return list(numbers) if self.size == 1 else self.sum(torch.tensor(numbers, dtype=torch.float64)).tolist()

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in the order of the ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: T) -> T:
        """The value of rank 0."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def on_main(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 only; all ranks return its result, or raise its error. Do not nest calls."""
        if self.size == 1:
            return action()
        failure: Exception | None = None
        told: tuple[Failure | None, T | None] = (None, None)
        if self.is_main:
            try:
                told = (None, action())
            except Exception as error:
                failure, told = error, (Failure.describe(error), None)
        reported, result = self.broadcast(told)
        if failure is not None:
            raise failure
        if reported is not None:
            reported.raise_for("")
        return cast(T, result)

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        """Make the block succeed on every rank or raise on every rank: its own error, else that of the first rank that failed.

        Unless every rank failed, the message starts with `rank 1: `. Inside the block no rank may wait for another.
        """
        if self.size == 1:
            yield
            return
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        failed = self.sum_numbers([float(failure is not None)])[0]
        if not failed:
            return
        failures = self.gather(None if failure is None else Failure.describe(failure))
        if failure is not None:
            if isinstance(failure, UserError | RunStopped) and failed < self.size:
                failure.args = (f"rank {self.rank}: {failure}",)
            raise failure
        for rank, other in enumerate(failures):
            if other is not None:
                other.raise_for(f"rank {rank}: ")

    @contextmanager
    def contact(self) -> Iterator[None]:
        """Raise RunStopped when another process ends, hangs or falls silent while the block runs."""
        if self.size > 1:
            notice_silence()
        try:
            yield
        except RuntimeError as error:
            is_lost = isinstance(error, dist.DistError) or any(word in str(error) for word in LOST)
            if self.size == 1 or not is_lost:
                raise
            raise RunStopped(
                f"rank {self.rank} has lost another process, which ended or no longer responds; see the output of that process "
                f"or of the launcher for the reason ({str(error).splitlines()[0][:200]})"
            ) from error
