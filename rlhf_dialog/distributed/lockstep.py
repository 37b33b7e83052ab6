"""Let ranks call partitioned models a different number of times without a deadlock.

A unit is a module that is called as a whole (a trunk, an output embedding): all ranks must call the same unit at the same time,
because its weights come from all of them. Before each call the ranks agree on the unit; a rank that wants another one, or has
finished, makes a blank call, whose result is discarded.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from rlhf_dialog.distributed.world import World


@dataclass(frozen=True)
class Unit:
    """`blank` calls the module on one token; `ended` is called after every call of the module."""

    module: nn.Module
    blank: Callable[[], Any]
    ended: Callable[[], None]


class Lockstep:
    """Use `with Lockstep(world, units).together():` around the calls that each rank makes at its own pace.

    `passes` counts all calls, `blank_passes` the blank ones among them.
    """

    def __init__(self, world: World, units: list[Unit]):
        self.world, self.units = world, units
        self.inside = False
        self.passes = self.blank_passes = 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """The block ends, or raises, on each rank when all ranks have finished theirs."""
        hooks: list[Any] = []
        for number, unit in enumerate(self.units):
            hooks.append(unit.module.register_forward_pre_hook(partial(self._turn, number), prepend=True))
            hooks.append(unit.module.register_forward_hook(partial(self._after, number), always_call=True))
        try:
            try:
                yield
            except Exception:
                self._attend()
                raise
            self._attend()
        finally:
            for hook in hooks:
                hook.remove()

    def _turn(self, number: int, module: nn.Module, args: Any) -> None:
        """Called before the forward of a unit: make blank calls until it is this unit's turn."""
        if self.inside:
            return
        while (chosen := self.world.least(number)) != number:
            self._blank(chosen)
        self._begin(number)

    def _attend(self) -> None:
        """Make blank calls until no rank wants to call a unit."""
        self.inside = False
        while (chosen := self.world.least(len(self.units))) < len(self.units):
            self._blank(chosen)

    def _begin(self, number: int) -> None:
        self.inside, self.owner = True, number
        self.passes += 1

    def _blank(self, number: int) -> None:
        self._begin(number)
        self.blank_passes += 1
        with torch.no_grad():
            self.units[number].blank()

    def _after(self, number: int, module: nn.Module, args: Any, output: Any) -> None:
        if self.inside and self.owner == number:
            self.units[number].ended()
            self.inside = False
