"""Log-probabilities and entropies against log_softmax and plain autograd."""

import pytest
import torch

from rlhf_dialog.models.logprobs import at_least_float32, on_support, predict

INF = torch.inf


def plain(logits, targets, temperature, support=None):
    """Row by row over the kept tokens alone; a token of probability 0 adds nothing to the entropy."""
    logprobs, entropies = [], []
    for k, target in enumerate(targets.tolist()):
        row = logits[k] / temperature
        kept = [i for i in (range(len(row)) if support is None else support[k].tolist()) if i >= 0]
        whole = row[kept].logsumexp(0)
        logprobs.append(row[target] - whole)
        logp = row[[i for i in kept if logits[k, i] > -1e4]] - whole
        entropies.append(-(logp.exp() * logp).sum())
    return torch.stack(logprobs), torch.stack(entropies)


def example(impossible=False, seed=0, rows=5, vocabulary=7):
    """Logits (K, V) in float64, their targets, and a support with padding that holds the targets."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, vocabulary, generator=g, dtype=torch.float64)
    order = torch.rand(rows, vocabulary, generator=g).argsort(dim=1)
    targets = order[:, 0]
    if impossible:
        logits[0, order[0, 1]], logits[1, order[1, 1:4]], logits[2, order[2, 1:]] = -INF, -INF, -INF
        logits[3, order[3, 1]] = -1e30
    support = torch.where(torch.arange(4) < torch.tensor([[4], [1], [2], [3], [4]]), order[:, :4], -1)
    return logits.requires_grad_(), targets, support


@pytest.mark.parametrize(
    ("temperature", "impossible", "filtered"),
    [(1.0, True, False), (1.0, False, True), (2.5, True, True), (0.6, False, False)],
)
def test_numbers_and_gradients_equal_plain_autograd(temperature, impossible, filtered):
    logits, targets, support = example(impossible)
    support, before = support if filtered else None, logits.detach().clone()
    weights = torch.tensor([0.3, -1.2, 0.7, 2.0, -0.4], dtype=torch.float64)
    gradients = []
    for function in (lambda *args: predict(*args, True), plain):
        logprobs, entropy = function(logits, targets, temperature, support)
        (gradient,) = torch.autograd.grad((weights * logprobs + weights.flip(0) * entropy).sum(), logits)
        gradients.append((logprobs, entropy, gradient))
    for ours, slow in zip(*gradients, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, slow, rtol=0, atol=1e-12)
    alone, nothing = predict(logits, targets, temperature, support, False)
    assert nothing is None
    torch.testing.assert_close(alone, gradients[1][0], rtol=0, atol=1e-12)
    (ours,) = torch.autograd.grad((weights * alone).sum(), logits)
    (slow,) = torch.autograd.grad((weights * plain(logits, targets, temperature, support)[0]).sum(), logits)
    torch.testing.assert_close(ours, slow, rtol=0, atol=1e-12)
    assert torch.equal(logits.detach(), before)  # kept for the way back, and a filter's chunk may be read again


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_precision(dtype):
    logits, targets, support = example()
    logits = logits.detach().to(dtype).requires_grad_()
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    assert at_least_float32(logits).dtype == wanted
    for kept in (None, support):
        logprobs, entropy = predict(logits, targets, 0.7, kept, True)
        assert logprobs.dtype == entropy.dtype == wanted
        expected = plain(logits.detach().double(), targets, 0.7, kept)
        for ours, slow in zip((logprobs, entropy), expected, strict=True):
            torch.testing.assert_close(ours.double(), slow, rtol=0, atol=1e-5)  # computed in float32, not in bfloat16
        (logprobs.sum() + entropy.sum()).backward()
        assert logits.grad.dtype == dtype


def test_no_positions():
    for support in (None, torch.empty(0, 3, dtype=torch.long)):
        logits = torch.empty(0, 7, requires_grad=True)
        logprobs, entropy = predict(logits, torch.empty(0, dtype=torch.long), 0.7, support, True)
        assert logprobs.shape == entropy.shape == (0,)
        (logprobs.sum() + entropy.sum()).backward()


def test_it_keeps_one_buffer():
    """The logits themselves; plain autograd keeps several of their size."""
    logits, targets, _ = example(rows=5, vocabulary=1000)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        predict(logits, targets, 0.7, None, True)
    assert sorted(kept) == [5, 5, 5, 5000]


def test_on_support_by_hand():
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert on_support(logits, torch.tensor([[3, 0, -1]])).tolist() == [[4.0, 1.0, -torch.inf]]
    assert on_support(logits.unsqueeze(0), torch.tensor([[[3, 0, -1]]])).tolist() == [[[4.0, 1.0, -torch.inf]]]
