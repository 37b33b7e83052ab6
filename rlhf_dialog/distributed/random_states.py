"""The random generators of a process: seeding them, and their states as the tensors and the JSON of a checkpoint."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rlhf_dialog.distributed.world import World

RandomStates = tuple[dict[str, Tensor], dict[str, Any]]  # torch and CUDA; python and numpy as JSON


def seed_everything(seed: int, *path: int) -> None:
    """Seed python, numpy and torch; with a path (a rank, an iteration) by a number that is made of all of them."""
    if path:
        seed = int(np.random.SeedSequence([seed, *path]).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def seed_rank(seed: int, world: World, *path: int) -> None:
    """Every rank draws numbers of its own; without a path rank 0 those of a single process."""
    if world.is_main and not path:
        seed_everything(seed)
    else:
        seed_everything(seed, world.rank, *path)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Whatever the block draws, the python, numpy, torch and CUDA generators go on afterwards as if it had not been there."""
    states = random_states()
    try:
        yield
    finally:
        restore_random_states(*states)


def random_states() -> RandomStates:
    """The states of all random generators of this process."""
    generators = {"torch": torch.get_rng_state()}
    generators |= {f"cuda.{i}": torch.cuda.get_rng_state(device) for i, device in enumerate(_cuda_devices())}
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    numpy_state = [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    return generators, {"python": [version, list(internal), gauss], "numpy": numpy_state}


def _cuda_devices() -> list[int]:
    """The CUDA devices of this process: with others beside it only its own."""
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.current_device()] if dist.is_initialized() else list(range(torch.cuda.device_count()))


def restore_random_states(generators: dict[str, Tensor], states: dict[str, Any]) -> None:
    """Put every generator of this process into a state of `random_states`."""
    torch.set_rng_state(generators["torch"])
    devices = _cuda_devices()
    for name in generators if devices else ():
        if name.startswith("cuda."):
            torch.cuda.set_rng_state(generators[name], devices[int(name.removeprefix("cuda."))])
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))


def merged_states(ranks: Sequence[RandomStates]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The states of all ranks as the tensors of one file and entries of the JSON; rank 0 has the names of a single process."""
    generators = dict(ranks[0][0])
    for rank, (own, _) in enumerate(ranks[1:], 1):
        generators |= {f"rank{rank}.{name}": tensor for name, tensor in own.items()}
    others = {"random_of_other_ranks": [python for _, python in ranks[1:]]} if len(ranks) > 1 else {}
    return generators, {"random": ranks[0][1], **others}


def states_of_rank(rank: int, generators: dict[str, Tensor], state: dict[str, Any]) -> RandomStates:
    """The states of one rank from what `merged_states` made."""
    if rank == 0:
        return {name: x for name, x in generators.items() if not name.startswith("rank")}, state["random"]
    prefix = f"rank{rank}."
    own = {name.removeprefix(prefix): x for name, x in generators.items() if name.startswith(prefix)}
    return own, state["random_of_other_ranks"][rank - 1]
