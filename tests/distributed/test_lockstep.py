"""Ranks with other numbers of calls make each the same ones."""

import pytest
import torch
from torch import nn

from rlhf_dialog.distributed.lockstep import Lockstep, Unit
from rlhf_dialog.distributed.world import World


class Three(World):
    """A rank beside which another wants units 1, 0 and then nothing."""

    wanted = (1, 0, 2, 2, 2, 2)

    def least(self, number: int) -> int:
        self.__dict__.setdefault("asked", []).append(number)
        return min(number, self.wanted[len(self.__dict__["asked"]) - 1])


@pytest.mark.parametrize("fails", [False, True])
def test_lockstep_makes_the_calls_that_others_want(fails):
    modules = [nn.Linear(2, 2), nn.Linear(2, 2)]
    ended: list[int] = []
    units = [Unit(m, lambda m=m: m(torch.zeros(1, 2)), lambda i=i: ended.append(i)) for i, m in enumerate(modules)]
    steps = Lockstep(Three(), units)

    def own():
        with steps.together():
            modules[1](torch.ones(1, 2))
            if fails:
                raise ValueError("mine")

    if fails:
        with pytest.raises(ValueError, match="mine"):
            own()
    else:
        own()
    assert ended == [1, 0]  # its own with that of the other rank, then one that counts nowhere
    assert (steps.passes, steps.blank_passes) == (2, 1)
    modules[0](torch.ones(1, 2))
    assert ended == [1, 0]  # no hook is left
