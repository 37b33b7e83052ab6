"""Linear layers by oneDNN give the numbers and gradients of torch's own, and are the same module to everybody else."""

import copy
import pickle

import pytest
import torch
from torch import nn
from transformers.activations import NewGELUActivation
from transformers.pytorch_utils import Conv1D

from rlhf_dialog.models import cpu_linear
from rlhf_dialog.models.cpu_linear import OneDNN, OneDNNConv1D, OneDNNLinear, use_onednn
from rlhf_dialog.models.loading import fuse_gelu
from tests.parts.tiny import gpt2, llama

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
needs_onednn = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="this torch has no oneDNN",
)
LAYERS = {
    "linear": lambda: nn.Linear(24, 40),
    "no bias": lambda: nn.Linear(24, 40, bias=False),
    "conv1d": lambda: Conv1D(40, 24),
}


def pair(name):
    """torch's layer and a copy of it by oneDNN."""
    torch.manual_seed(0)
    usual = LAYERS[name]()
    if usual.bias is not None:
        nn.init.normal_(usual.bias)
    ours = copy.deepcopy(usual)
    assert use_onednn(ours, enabled=True)
    assert type(ours) in (OneDNNLinear, OneDNNConv1D)
    return usual, ours


def calls(monkeypatch):
    """The shapes that oneDNN is given."""
    seen = []
    multiply = cpu_linear.multiply
    monkeypatch.setattr(cpu_linear, "multiply", lambda x, *rest: seen.append(tuple(x.shape)) or multiply(x, *rest))
    return seen


@needs_onednn
@pytest.mark.parametrize(("name", "shape"), [("linear", (24,)), ("no bias", (2, 1, 3, 24)), ("conv1d", (2, 1, 3, 24))])
def test_numbers_and_gradients_equal_torchs(name, shape, monkeypatch):
    usual, ours = pair(name)
    seen = calls(monkeypatch)
    found = []
    for layer in (usual, ours):
        torch.manual_seed(1)
        x = torch.randn(shape, requires_grad=True)
        y = layer(x)
        weights = torch.randn(y.shape)
        gradients = torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()])
        found.append([y, *gradients])
        assert bool(seen) == (layer is ours)
    for a, b in zip(*found, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(b, a, **CLOSE)


@needs_onednn
def test_rows_that_are_not_side_by_side():
    """A view of every second column, transposed inputs, and a gradient that is one number everywhere."""
    usual, ours = pair("conv1d")
    for x in (torch.randn(9, 48)[:, ::2], torch.randn(24, 9).t()):
        torch.testing.assert_close(ours(x), usual(x), **CLOSE)
    for layer in (usual, ours):
        layer(x).sum().backward()  # the gradient has stride 0
    torch.testing.assert_close(ours.weight.grad, usual.weight.grad, **CLOSE)


def test_other_precisions_are_torchs_own(monkeypatch):
    usual, ours = pair("conv1d")
    seen = calls(monkeypatch)
    x = torch.randn(6, 24)
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x).dtype == torch.bfloat16
        assert torch.equal(ours(x), usual(x))
    assert torch.equal(ours.double()(x.double()), usual.double()(x.double()))
    assert torch.equal(ours.bfloat16()(x.bfloat16()), usual.bfloat16()(x.bfloat16()))
    assert not seen


@needs_onednn
def test_a_model_with_it_is_the_same_model(tmp_path):
    usual, ours = (gpt2(initializer_range=0.3).eval() for _ in range(2))
    assert use_onednn(ours, enabled=True)
    kinds = {type(module) for module in ours.modules()}
    assert OneDNNLinear in kinds
    assert kinds & {nn.Linear, Conv1D} == set()
    ids = torch.randint(0, 250, (2, 9))
    torch.testing.assert_close(ours(ids).logits, usual(ids).logits, **CLOSE)
    assert ours.get_output_embeddings().weight is ours.get_input_embeddings().weight  # still tied
    for name, lm in (("ours", ours), ("usual", usual)):
        lm.save_pretrained(tmp_path / name)
    for path in (tmp_path / "usual").iterdir():
        assert (tmp_path / "ours" / path.name).read_bytes() == path.read_bytes(), path
    for lm in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert {type(module) for module in lm.modules()} == kinds
        assert torch.equal(lm(ids).logits, ours(ids).logits)


def test_layers_of_another_class_are_left_alone():
    own = type("Own", (nn.Linear,), {})
    model = nn.Sequential(own(3, 4), nn.Linear(4, 5))
    use_onednn(model, enabled=True)
    assert [type(module) for module in model] == [own, OneDNNLinear]


@pytest.mark.parametrize(
    ("vendor", "available", "faster"),
    [("AuthenticAMD", True, True), ("GenuineIntel", True, False), ("AuthenticAMD", False, False), (None, True, False)],
)
def test_where_it_is_the_faster_one(monkeypatch, tmp_path, vendor, available, faster):
    if available and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    if vendor is not None:
        (tmp_path / "cpuinfo").write_text(f"vendor_id\t: {vendor}\n")
    monkeypatch.setattr(cpu_linear, "Path", lambda name: tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: available)
    monkeypatch.setattr(cpu_linear, "onednn_is_faster", cpu_linear.onednn_is_faster.__wrapped__)
    lm = gpt2()
    assert use_onednn(lm) == faster
    assert isinstance(lm.get_output_embeddings(), OneDNNLinear) == faster


@needs_onednn
def test_no_second_derivatives():
    """They would silently be wrong."""
    x = torch.randn(3, 24, requires_grad=True)
    y = OneDNN.apply(x, torch.randn(40, 24, requires_grad=True), None)
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_the_fused_activation_is_the_same_function():
    lm = gpt2(initializer_range=0.3)
    fused = copy.deepcopy(lm)
    fuse_gelu(fused)
    assert not any(isinstance(module, NewGELUActivation) for module in fused.modules())
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64, requires_grad=True)
    found = []
    for model in (lm, fused):
        y = model.transformer.h[0].mlp.act(x)
        found.append((y, *torch.autograd.grad(y.sum(), x)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-12)
    other = llama()
    before = [type(module) for module in other.modules()]
    fuse_gelu(other)
    assert [type(module) for module in other.modules()] == before
