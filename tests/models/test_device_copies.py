import torch

from rlhf_dialog.models.token_batch import fetch, send, send_all
from tests.parts.pretended_gpu import pretended_gpu

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
NUMBERS = [torch.arange(3), torch.empty(0, dtype=torch.long), torch.tensor([7])]


def test_on_a_cpu_nothing_is_copied():
    x = torch.ones(2, 3)
    assert send(x, CPU) is x
    assert fetch(x)[0] is x
    assert all(x is y for x, y in zip(send_all(NUMBERS, CPU), NUMBERS, strict=True))


def test_sending_does_not_wait_and_fetching_waits_once():
    with pretended_gpu() as gpu:
        x = send(torch.ones(2, 3), GPU)
        numbers = send_all(NUMBERS, GPU)
        assert {y.device for y in (x, *numbers)} == {GPU}
        assert gpu.num_waits == 0, gpu.report()
        found = fetch(x, *numbers, torch.zeros(1))
        assert gpu.num_waits == 1, gpu.report()
    assert [y.tolist() for y in found] == [[[1, 1, 1], [1, 1, 1]], [0, 1, 2], [], [7], [0]]
    assert {y.device for y in found} == {CPU}


def test_columns_of_a_wider_tensor_are_pinned_as_the_whole_that_they_become(monkeypatch):
    """Torch gives pinned memory the strides of its source, and copies what is not contiguous through other memory."""
    seen = []
    with pretended_gpu():
        pin = torch.Tensor.pin_memory
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: seen.append(x.is_contiguous()) or pin(x))
        assert fetch(send(torch.arange(6).view(2, 3)[:, :2], GPU))[0].tolist() == [[0, 1], [3, 4]]
        monkeypatch.undo()
    assert seen == [True]
