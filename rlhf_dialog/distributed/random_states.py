"""The random generators of a process: how they are seeded, and how a checkpoint stores their states (tensors and JSON)."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_dialog.distributed.world import World

RandomStates = tuple[dict[str, Tensor], dict[str, Any]]  # torch and CUDA; python and numpy as JSON
CUDA = "cuda.0"  # the name of the own device's generator, whichever device that is


def seed_everything(seed: int, *path: int) -> None:
    """Seed python, numpy and torch. With a path (a rank, an iteration), the seed is derived from `seed` and the path."""
    if path:
        seed = int(np.random.SeedSequence([seed, *path]).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def seed_rank(seed: int, world: World, *path: int) -> None:
    """Give every rank its own random numbers; without a path, rank 0 draws the same numbers as a single process."""
    if world.is_main and not path:
        seed_everything(seed)
    else:
        seed_everything(seed, world.rank, *path)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """After the block, restore the generators of python, numpy, torch and the own CUDA device to their states from before it."""
    states = random_states()
    try:
        yield
    finally:
        restore_random_states(*states)


@contextmanager
def generators_of_users(seed: int, world: World, *path: int) -> Iterator[None]:
    """For code of the user: in the block the generators are seeded by the path, and after it they are what they were before.

    So is torch's default type: a reward that seeds, or changes it, does not change what the run draws and computes.
    """
    dtype = torch.get_default_dtype()
    with random_states_kept():
        seed_rank(seed, world, *path)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


def random_states() -> RandomStates:
    """The states of the random generators of this process: python, numpy, torch, and of its own CUDA device."""
    generators = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        generators[CUDA] = torch.cuda.get_rng_state(torch.cuda.current_device())
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    numpy_state = [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    return generators, {"python": [version, list(internal), gauss], "numpy": numpy_state}


def restore_random_states(generators: dict[str, Tensor], states: dict[str, Any]) -> None:
    """Restore the generators of this process to what `random_states` returned.

    A device without a stored state (the checkpoint is from a machine without CUDA) is seeded from the state of torch.
    """
    torch.set_rng_state(generators["torch"])
    if torch.cuda.is_available():
        if CUDA in generators:
            torch.cuda.set_rng_state(generators[CUDA], torch.cuda.current_device())
        else:
            path = np.random.SeedSequence(generators["torch"].tolist())
            torch.cuda.manual_seed(int(path.generate_state(1)[0]))
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))


def merged_states(ranks: Sequence[RandomStates]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The states of all ranks as tensors for one file and entries for the JSON; rank 0 uses the names of a single process."""
    generators = dict(ranks[0][0])
    for rank, (own, _) in enumerate(ranks[1:], 1):
        generators |= {f"rank{rank}.{name}": tensor for name, tensor in own.items()}
    others = {"random_of_other_ranks": [python for _, python in ranks[1:]]} if len(ranks) > 1 else {}
    return generators, {"random": ranks[0][1], **others}


def select_rank_states(rank: int, generators: dict[str, Tensor], state: dict[str, Any]) -> RandomStates:
    """The states of one rank, taken from the result of `merged_states`."""
    if rank == 0:
        return {name: x for name, x in generators.items() if not name.startswith("rank")}, state["random"]
    prefix = f"rank{rank}."
    tensors = {name.removeprefix(prefix): x for name, x in generators.items() if name.startswith(prefix)}
    return tensors, state["random_of_other_ranks"][rank - 1]
