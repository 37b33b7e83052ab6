"""The pretended GPU of tests/parts/pretended_gpu.py: what it counts and raises is what CUDA is documented to do."""

import copy

import pytest
import torch
from torch import nn

from tests.parts.pretended_gpu import pretended_gpu


@pytest.fixture
def gpu():
    with pretended_gpu() as counts:
        yield counts


@pytest.fixture
def x(gpu):
    made = torch.arange(6.0, device="cuda").view(2, 3)
    gpu.reset()
    return made


def test_a_tensor_says_where_it_is_and_two_devices_in_one_operation_raise(x):
    assert (x.device, x.is_cuda, x.is_cpu, x.get_device()) == (torch.device("cuda", 0), True, False, 0)
    made = [torch.zeros_like(x), torch.rand(2, device=x.device), x.detach(), x[0], torch.ones(2).cuda()]
    assert {y.device for y in made} == {torch.device("cuda", 0)}
    assert {y.device for y in (x.cpu(), x.to(torch.zeros(1)), torch.zeros(2))} == {torch.device("cpu")}
    for mixed in (lambda: x + torch.ones(2, 3), lambda: nn.Linear(3, 2)(x)):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            mixed()


@pytest.mark.parametrize(
    ("work", "waits"),
    [
        (lambda x: x.sum().item(), 1),
        (lambda x: x.to("cpu"), 1),
        (lambda x: torch.ones(3).to("cuda", non_blocking=True), 1),  # pageable memory
        (lambda x: x[x > 1], 1),
        (lambda x: x.index_put_((x > 1,), x[0, :1].expand(4)), 1),
        (lambda x: torch.cuda.synchronize(), 1),
        (lambda x: x.__setitem__(x > 1, 0.0), 0),
        (lambda x: torch.ones(3).pin_memory().to("cuda", non_blocking=True), 0),
        (lambda x: x.to("cpu", non_blocking=True), 0),
    ],
)
def test_how_often_the_host_waits(gpu, x, work, waits):
    work(x)
    assert gpu.num_waits == waits, gpu.report()
    assert all(place.startswith("tests/test_pretended_gpu.py:") for place in gpu.waits)


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 2))


def two_steps(model, device):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(2):
        with torch.autocast(device, torch.bfloat16, enabled=step == 1):
            loss = model(torch.linspace(-1, 1, 15, device=device).view(5, 3)).square().sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.tolist() for parameter in copy.deepcopy(model).parameters()]


def test_training_gives_the_numbers_of_the_cpu_without_a_wait(gpu):
    expected = two_steps(small_model(), "cpu")
    model = small_model().to("cuda")
    assert all(parameter.is_cuda and isinstance(parameter, nn.Parameter) for parameter in model.parameters())
    gpu.reset()
    assert two_steps(model, "cuda") == expected
    assert set(gpu.waits) == {what for what in gpu.waits if what.endswith("tolist")}, gpu.report()
