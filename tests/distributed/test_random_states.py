"""Random generators: one seed for all of them, numbers of its own for each rank, and states that are kept."""

import random

import numpy as np
import pytest
import torch

from rlhf_dialog.distributed import random_states
from rlhf_dialog.distributed.random_states import random_states_kept
from rlhf_dialog.distributed.world import World


def draws() -> tuple:
    return random.random(), float(np.random.rand()), float(torch.rand(())), torch.randperm(9).tolist()


def test_one_seed_seeds_all_three_generators():
    random_states.seed_everything(5)
    first = draws()
    random_states.seed_everything(6)
    second = draws()
    random_states.seed_everything(5)
    assert draws() == first
    assert all(a != b for a, b in zip(first, second, strict=True))
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    assert draws() == first


def seeded(world: World) -> list[float]:
    random_states.seed_rank(3, world)
    drawn = [torch.rand(()).item(), float(np.random.rand())]
    random_states.seed_rank(3, world, 7)
    return [*drawn, torch.rand(()).item()]


def test_each_rank_draws_its_own_numbers_and_rank_0_those_of_one_process():
    random_states.seed_everything(3)
    alone = [torch.rand(()).item(), float(np.random.rand())]
    found = [seeded(World(rank, 3)) for rank in range(3)]
    assert found[0][:2] == alone
    assert len({number for one in found for number in one}) == 9
    random_states.seed_everything(4)
    assert torch.rand(()).item() not in found[1]  # seed + rank would repeat the runs of other seeds


def test_random_states_are_kept_even_when_the_block_fails():
    def draw() -> tuple:
        return random.random(), np.random.standard_normal(), torch.rand(2).tolist()

    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    draw()
    expected = [draw() for _ in range(2)]
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    draw()

    def fail() -> None:
        draw()
        torch.manual_seed(9)
        raise KeyError

    with pytest.raises(KeyError), random_states_kept():
        fail()
    assert [draw() for _ in range(2)] == expected


def test_random_states_of_one_process_keep_their_names():
    generators, python = random_states.random_states()
    assert "torch" in generators
    assert set(python) == {"python", "numpy"}
