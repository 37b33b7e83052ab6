"""Random generators: one seed for all of them, numbers of its own for each rank, and states that are kept."""

import random
from contextlib import suppress

import numpy as np
import peft  # noqa: F401  it imports bitsandbytes, which must not find the pretended devices
import pytest
import torch

from rlhf_dialog.distributed import random_states
from rlhf_dialog.distributed.random_states import random_states_kept
from rlhf_dialog.distributed.world import World
from rlhf_dialog.models.lora import add_adapters
from tests.parts.tiny import gpt2


def draws() -> tuple:
    return random.random(), float(np.random.rand()), float(torch.rand(())), torch.randperm(9).tolist()


def test_one_seed_seeds_all_three_generators():
    random_states.seed_everything(5)
    first = draws()
    random_states.seed_everything(6)
    assert all(a != b for a, b in zip(first, draws(), strict=True))
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    assert draws() == first


def test_each_rank_draws_its_own_numbers_and_rank_0_those_of_one_process():
    found = []
    for path in ((), (7,)):
        for rank in range(3):
            random_states.seed_rank(3, World(rank, 3), *path)
            found.append(draws()[:3])
    assert len({number for one in found for number in one}) == 18
    random_states.seed_everything(3)
    assert draws()[:3] == found[0]
    random_states.seed_everything(4)
    assert draws()[:3] not in found  # seed + rank would repeat the runs of other seeds


def test_random_states_are_kept_even_when_the_block_fails(cuda_generators):
    here, generators = cuda_generators(2, own=1), []
    for is_kept in (False, True):
        random_states.seed_everything(1)
        np.random.standard_normal()  # of two, of which one waits for the next call
        generators.append(here.states[1].clone())
        if is_kept:
            with suppress(KeyError), random_states_kept():
                draws()
                random_states.seed_everything(9)
                raise KeyError
        generators.append((*draws(), np.random.standard_normal()))
    assert generators[1] == generators[3]
    assert torch.equal(here.states[1], generators[0])


def test_the_states_of_ranks_are_those_of_one_file():
    ranks = [
        ({"torch": torch.tensor([rank]), "cuda.0": torch.tensor([10 + rank])}, {"python": rank}) for rank in (0, 1, 2)
    ]
    generators, state = random_states.merged_states(ranks)
    assert random_states.merged_states(ranks[:1]) == (ranks[0][0], {"random": {"python": 0}})
    assert {"torch", "cuda.0", "rank2.torch", "rank2.cuda.0"} <= set(generators)
    for rank, expected in enumerate(ranks):
        assert random_states.select_rank_states(rank, generators, state) == expected


class Generators:
    """One 16-byte state for each device, as torch would hold it; `seeds` are those that any call has set on any device."""

    def __init__(self, count: int, own: int):
        self.own, self.seeds = own, []
        self.states = [torch.full((16,), device, dtype=torch.uint8) for device in range(count)]

    def seed(self, seed: int, devices: list[int]) -> None:
        self.seeds.append(seed)
        for device in devices:
            self.states[device] = torch.tensor([seed % 251, device, 7] + [0] * 13, dtype=torch.uint8)

    def restore(self, state: torch.Tensor, device: int) -> None:
        self.states[device] = state.clone()


@pytest.fixture
def cuda_generators(monkeypatch):
    def made(count: int, own: int = 0) -> Generators:
        found = Generators(count, own)
        number = lambda device: own if device == "cuda" else int(device)  # noqa: E731
        for name, replacement in {
            "is_available": lambda: count > 0,
            "device_count": lambda: count,
            "current_device": lambda: own,
            "get_rng_state": lambda device="cuda": found.states[number(device)].clone(),
            "set_rng_state": lambda state, device="cuda": found.restore(state, number(device)),
            "manual_seed": lambda seed: found.seed(seed, [own]),
            "manual_seed_all": lambda seed: found.seed(seed, list(range(count))),
        }.items():
            monkeypatch.setattr(torch.cuda, name, replacement)
        return found

    return made


def test_a_process_keeps_the_generator_of_its_own_device_only(cuda_generators):
    """Rank 3 of a machine with eight GPUs: in the checkpoint its device is number 0, wherever the run goes on."""
    there = cuda_generators(8, own=3)
    generators, python = random_states.random_states()
    assert [name for name in generators if name != "torch"] == ["cuda.0"]
    assert torch.equal(generators["cuda.0"], there.states[3])
    here = cuda_generators(1)
    random_states.restore_random_states(generators, python)
    assert torch.equal(here.states[0], there.states[3])


def test_a_gpu_that_the_checkpoint_does_not_know_gets_numbers_of_its_own(cuda_generators):
    """The checkpoint of a CPU goes on on a GPU: not with the numbers of the run's first iteration."""
    found = []
    for draws_before in (0, 1, 1):
        here = cuda_generators(0)
        random_states.seed_everything(0)
        torch.rand(draws_before)
        states = random_states.random_states()
        here = cuda_generators(1)
        random_states.restore_random_states(*states)
        assert len(here.seeds) == 1
        found += here.seeds
    assert found[0] != found[1] == found[2]
    assert 0 not in found


def test_adapters_leave_no_seed_on_a_gpu(cuda_generators):
    """All ranks begin with the same adapters; with the seed on their GPUs they would also draw the same tokens."""
    model, here = gpt2(), cuda_generators(2)
    before = [state.tolist() for state in here.states]
    add_adapters(model, ["policy", "critic"], 4, 8.0, None, seed=3)
    assert here.seeds == []
    assert [state.tolist() for state in here.states] == before
