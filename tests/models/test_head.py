"""The head under autocast: how often its matrix is converted, its gradient against float64, and the size of a chunk of logits."""

import pytest
import torch
from torch import nn

from rlhf_dialog.models import policy as policy_module
from rlhf_dialog.models.policy import Policy, teacher_forced
from rlhf_dialog.models.precision import get_copy, multiply
from tests.parts.plain import new_case
from tests.parts.pretended_gpu import CUDA, pretended_gpu
from tests.parts.tiny import gpt2


def gradient(x, weight, size, compute):
    """That of a head in chunks of `size` rows, for fixed gradients of the logits."""
    torch.manual_seed(1)
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False).to(weight.device, weight.dtype)
    head.weight.data.copy_(weight)
    for rows in x.split(size):
        logits = compute(head, rows)
        logits.backward(torch.randn(logits.shape).bfloat16().to(logits.device, logits.dtype))
    return head.weight.grad


def by_copy(head, rows):
    return multiply(head, get_copy(head, torch.bfloat16), rows)


def by_autocast(head, rows):
    with torch.autocast("cpu", torch.bfloat16, enabled=rows.dtype != torch.float64):
        return head(rows)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_in_bfloat16_the_error_against_float64_is_not_larger_than_by_autocast(on_gpu):
    """On a GPU, whose products stay float32, it is a tenth: the factors are rounded alike, the sums are not."""
    torch.manual_seed(0)
    x, weight = torch.randn(520, 24).bfloat16().float(), torch.randn(90, 24).bfloat16().float()
    exact = [gradient(x.double(), weight.double(), size, by_autocast) for size in (520, 130)]
    before = gradient(x, weight, 130, by_autocast)
    if on_gpu:
        with pretended_gpu():
            after = [gradient(x.to(CUDA), weight.to(CUDA), 520, by_copy).cpu()]
    else:
        after = [gradient(x, weight, size, by_copy) for size in (520, 130)]
    for found, wanted in zip(after, exact, strict=False):
        assert (found - wanted).norm() <= (before - exact[1]).norm() * (0.1 if on_gpu else 1)


def test_predictions_and_gradients_are_those_of_autocast(monkeypatch):
    """In chunks, which are computed again on the way back; by autocast nothing is copied."""
    monkeypatch.setattr(policy_module, "LOGITS_AT_ONCE", 5 * 300)
    found, policy, case = [], Policy(gpt2(), with_value_head=True, use_amp=True).eval(), new_case(3)
    for copied in (True, False):
        monkeypatch.setattr(policy_module, "get_copy", get_copy if copied else lambda *_: None)
        policy.zero_grad()
        result = teacher_forced(policy, case.tokens, 0.8)
        (result.logprobs.sum() + result.entropy.sum()).backward()
        found.append([result.logprobs, result.entropy, *(p.grad for p in policy.lm.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)
    assert torch.equal(found[0][0], found[1][0])


def test_what_is_left_to_autocast(monkeypatch):
    head = nn.Linear(3, 5)
    assert get_copy(head, torch.bfloat16) is not None
    assert get_copy(head.bfloat16(), torch.bfloat16) is None
    assert get_copy(nn.Linear(3, 5).double(), torch.bfloat16) is None
    assert get_copy(type("Other", (nn.Linear,), {})(3, 5), torch.bfloat16) is None
    policy = Policy(gpt2(), use_amp=True).eval()
    policy.lm.lm_head.weight.ds_id = 0  # as a part of ZeRO 3
    assert policy.logits(torch.randn(2, policy.lm.config.n_embd)).dtype == torch.bfloat16
    monkeypatch.setattr(policy_module, "get_copy", None)
    policy.logits(torch.randn(2, policy.lm.config.n_embd))


def test_the_size_of_a_chunk_does_not_follow_the_free_memory(monkeypatch):
    """A resumed run would round otherwise. By hand: 2**24 and 2**26 logits, of 259 tokens."""
    policy = Policy(gpt2())
    assert policy.positions_at_once == 64_776
    with pretended_gpu():
        policy.to(CUDA)
        for free in (0, 600 << 20, 80 << 30):
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 80 << 30))
            assert policy.positions_at_once == 259_107


def test_on_a_gpu_the_copy_is_filled_up_to_a_multiple_of_64_rows():
    """Small whole numbers, which 16 bits hold: logits and gradients are exactly those of 90 rows, and no column is added."""
    torch.manual_seed(0)
    x, weight = (torch.randint(-3, 4, shape).float() for shape in ((50, 24), (90, 24)))
    bias = torch.randint(-3, 4, (90,)).float()
    whole = torch.randint(-3, 4, (50, 90)).float()
    with pretended_gpu():
        head = nn.Linear(24, 90)
        head.weight.data.copy_(weight)
        head.bias.data.copy_(bias)
        head.to(CUDA)
        copy, inputs = get_copy(head, torch.bfloat16), x.to(CUDA).requires_grad_()
        assert copy.shape == (128, 24)
        assert get_copy(nn.Linear(24, 90).bfloat16().to(CUDA), torch.bfloat16) is not None
        assert get_copy(nn.Linear(24, 128).bfloat16().to(CUDA), torch.bfloat16) is None
        logits = multiply(head, copy, inputs)
        logits.backward(whole.bfloat16().to(CUDA))
        with torch.no_grad():
            frozen = multiply(head, copy, inputs)
        found = [y.float().cpu() for y in (logits.detach(), frozen, inputs.grad, head.weight.grad, head.bias.grad)]
    expected = x @ weight.t() + bias
    for ours, theirs in zip(found, [expected, expected, whole @ weight, whole.t() @ x, whole.sum(dim=0)], strict=True):
        assert torch.equal(ours, theirs)
