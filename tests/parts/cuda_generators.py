"""The generators of GPUs that are not there: `cuda_generators(count, own)` notes what seeds them."""

import pytest
import torch


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
