"""What a run computes in on which device, and what that means for weights that are not trained."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf_dialog.models import precision
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.models.loading import load_causal_lm, load_models
from rlhf_dialog.models.policy import Policy, teacher_forced
from rlhf_dialog.models.token_batch import TokenBatch
from tests.parts import tiny
from tests.parts.policies import Ends
from tests.parts.pretended_gpu import pretended_gpu
from tests.parts.saved_models import CPU, EPISODES, save
from tests.parts.token_batches import respond_to
from tests.parts.trainers import settings

CUDA = torch.device("cuda")
ASKED = {"precision": "bf16"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints by their type; those in 16 bits hold the same numbers as the float32 one, rounded."""
    found = {}
    for name, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}.items():
        lm = tiny.llama(tie_word_embeddings=False).to(dtype)
        found[name] = save(tmp_path_factory.mktemp(name), lm)
    load_causal_lm(found["fp32"], "model_path")  # the first model of transformers must not be on the pretended GPU
    return found


@pytest.mark.parametrize(
    ("keys", "device", "flags", "warned"),
    [
        ({"precision": "bf16"}, CPU, "", True),
        ({"use_amp": True}, CPU, "", True),
        ({"precision": "bf16"}, CPU, "amx", False),
        ({"precision": "fp32"}, CPU, "", False),
        ({}, CPU, "", False),
        ({"precision": "bf16"}, CUDA, "", False),
    ],
)
def test_a_processor_without_bfloat16_is_named(keys, device, flags, warned, monkeypatch, caplog):
    monkeypatch.setattr(precision.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(precision, "cpu_bfloat16", lambda: flags)
    precision.warn_of_slow_bf16(settings(**keys), device)
    assert ("precision: fp32" in caplog.text) == warned


@pytest.mark.parametrize("has_bf16", [True, False])
def test_what_auto_is(has_bf16, monkeypatch):
    monkeypatch.setattr(precision, "gpu_has_bf16", lambda: has_bf16)
    assert precision.precision_of(settings(), CPU) == "fp32"
    assert precision.precision_of(settings(), CUDA) == ("bf16" if has_bf16 else "fp32")
    for keys, wanted in (({"use_amp": False}, "fp32"), ({"use_amp": True}, "bf16"), ({"precision": "fp16"}, "fp16")):
        assert {precision.precision_of(settings(**keys), device) for device in (CPU, CUDA)} == {wanted}


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [({}, "high"), (ASKED, "high"), ({"precision": "fp32"}, "highest"), ({"use_amp": True}, "highest")],
)
def test_float32_products_on_a_gpu(keys, wanted, monkeypatch):
    found = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", found.append)
    precision.set_float32_products(settings(**keys), CPU)
    assert not found
    precision.set_float32_products(settings(**keys), CUDA)
    assert found == [wanted]


def types_of(model):
    """The types of the weights of linear layers, and of all others."""
    linear = {id(p) for m in model.modules() if isinstance(m, torch.nn.Linear) for p in m.parameters(recurse=False)}
    own = [p for p in model.parameters() if not p.requires_grad]
    return {p.dtype for p in own if id(p) in linear}, {p.dtype for p in own if id(p) not in linear}


@pytest.mark.parametrize("lora", [{}, {"use_lora": True, "lora_r": 2}])
def test_frozen_linear_layers_keep_the_type_of_their_checkpoint_on_a_cpu(saved, lora):
    models = load_models(settings(model_path=saved["bf16"], precision="bf16", **lora), CPU)
    assert types_of(models.ref_policy) == ({torch.bfloat16}, {torch.float32})
    assert {p.dtype for p in models.policy.parameters() if p.requires_grad} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoint", "keys", "wanted"),
    [
        ("bf16", {}, torch.bfloat16),
        ("fp16", {}, torch.float16),
        ("bf16", {"precision": "fp32"}, torch.float32),
        ("bf16", {"use_lora": True, "lora_r": 2}, torch.bfloat16),
        ("fp16", {"use_lora": True, "lora_r": 2}, torch.float32),  # bf16 would lose bits
    ],
)
def test_frozen_linear_layers_keep_the_type_of_their_checkpoint_on_a_gpu(saved, checkpoint, keys, wanted, monkeypatch):
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda _: None)
    with pretended_gpu():
        models = load_models(settings(model_path=saved[checkpoint], **keys), torch.device("cuda", 0))
        assert types_of(models.ref_policy) == ({wanted}, {torch.float32})
        assert {p.dtype for p in models.policy.parameters() if p.requires_grad} == {torch.float32}


def test_narrow_weights_give_the_same_numbers_bit_for_bit(saved):
    """Those of the trained policy from the same checkpoint, whose weights are float32: so the first KL is 0."""
    wide, slim = (Policy(load_causal_lm(saved["bf16"], "model_path"), use_amp=True).eval() for _ in "ab")
    precision.narrow(slim.lm.requires_grad_(False))
    assert types_of(slim) == ({torch.bfloat16}, {torch.float32})
    with torch.no_grad():
        first, second = (teacher_forced(policy, TokenBatch(*EPISODES), 1.0).logprobs for policy in (wide, slim))
    assert torch.equal(first, second)


def test_weights_that_are_shared_trained_or_would_change_are_left_alone():
    lm = tiny.gpt2().bfloat16().float().requires_grad_(False)
    precision.narrow(lm)
    assert lm.lm_head.weight is lm.transformer.wte.weight
    assert lm.lm_head.weight.dtype == torch.float32
    assert lm.transformer.h[0].attn.c_attn.weight.dtype == torch.bfloat16
    trained, changing = tiny.llama().bfloat16().float(), tiny.llama().requires_grad_(False)
    for other in (trained, changing):
        precision.narrow(other)
        assert {p.dtype for p in other.parameters()} == {torch.float32}


class Casts(TorchDispatchMode):
    """Counts what is converted from float32 to 16 bits, of as many numbers as a weight has."""

    def __init__(self, model):
        super().__init__()
        self.sizes, self.count = {tuple(p.shape) for p in model.parameters() if p.dim() == 2}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ == "_to_copy" and (kwargs or {}).get("dtype") == torch.bfloat16:
            self.count += tuple(args[0].shape) in self.sizes
        return func(*args, **(kwargs or {}))


def test_the_base_of_lora_is_not_converted_for_each_token(tmp_path):
    """Each matrix is converted once in a rollout, as many tokens as it writes; the base stays frozen."""
    path = save(tmp_path, tiny.llama())
    policy = load_models(settings(model_path=path, use_lora=True, lora_r=5, **ASKED), CPU).policy
    assert policy.has_plain_head  # it has been tried
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    ids = torch.arange(12).view(3, 4)
    found = {}
    for tokens in (1, 2, 9):
        with Casts(policy) as casts:
            respond_to(policy, ids, ids >= 0, Sampling(tokens), Ends([]), 0)
        found[tokens] = casts.count
    base = 2 * 7 + 1  # linear layers, and the head
    adapters = 2 * 2 * 7
    assert found == dict.fromkeys((1, 2, 9), base + adapters)
    assert {name for name, p in policy.named_parameters() if p.requires_grad} == trained
