"""The head under autocast: how often its matrix is converted, its gradient against float64, and the size of a chunk of logits."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf_dialog.distributed.world import World
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models import lora
from rlhf_dialog.models import policy as policy_module
from rlhf_dialog.models.generation import Sampling, StopRule
from rlhf_dialog.models.loading import load_models
from rlhf_dialog.models.policy import Policy, get_copy, multiply, teacher_forced
from rlhf_dialog.training import rollout as rollout_module
from rlhf_dialog.training.trainer import PPOTrainer
from tests.parts.plain import new_case
from tests.parts.pretended_gpu import CUDA, pretended_gpu
from tests.parts.saved_models import CPU, save
from tests.parts.tiny import byte_tokenizer, gpt2, llama
from tests.parts.token_batches import respond_to
from tests.parts.trainers import PROMPTS, Places, settings

MODELS = {"tied": lambda: gpt2(n_layer=1, n_embd=16), "untied": lambda: llama(tie_word_embeddings=False)}
SIZES = {
    "rollout_batch_size": 4,
    "num_mini_batch": 2,
    "ppo_epoch": 1,
    "per_device_microbatch_size": 1,
    "max_new_tokens": 4,
}


class Conversions(TorchDispatchMode):
    """Counts the tensors of the shape of a matrix (V, H) that are converted to 16 bits."""

    def __init__(self, weight):
        super().__init__()
        self.shapes, self.count = {tuple(weight.shape), tuple(weight.shape[::-1])}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        dtype = (kwargs or {}).get("dtype")
        if func.overloadpacket.__name__ == "_to_copy" and dtype == torch.bfloat16 != args[0].dtype:
            self.count += tuple(args[0].shape) in self.shapes
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("trained", [True, False])
def test_a_head_is_converted_once_a_pass(kind, trained, monkeypatch):
    """Whatever the number of chunks of logits, which are computed again on the way back, or of tokens that are written."""
    monkeypatch.setattr(policy_module, "LOGITS_AT_ONCE", 2 * 300)
    policy, case = Policy(MODELS[kind](), with_value_head=True, use_amp=True).eval(), new_case(3)
    policy.lm.get_output_embeddings().requires_grad_(trained)
    assert policy.has_plain_head  # it has been tried
    with Conversions(policy.lm.get_output_embeddings().weight) as found:
        result = teacher_forced(policy, case.tokens, 0.8)
        (result.logprobs.sum() + result.entropy.sum()).backward()
    assert found.count == 1
    ids = torch.arange(12).view(3, 4)
    with Conversions(policy.lm.get_output_embeddings().weight) as found:
        respond_to(policy, ids, ids >= 0, Sampling(5), StopRule(policy, byte_tokenizer(), "<EOU>"), 0)
    assert found.count == 1


@pytest.mark.parametrize("share", [True, False])
def test_adapters_are_switched_once_a_pass(tmp_path, share, monkeypatch):
    """Off for the reference and on again, whatever the number of microbatches, and so for a critic with its own."""
    config = settings(model_path=save(tmp_path, MODELS["tied"]()), use_lora=True, use_share_model=share, **SIZES)
    trainer = PPOTrainer(config, load_models(config, CPU), PROMPTS, Places(), VecInfo(), World())
    switches, passes = [], []
    select, predict = lora._select, rollout_module.predict_columns
    monkeypatch.setattr(lora, "_select", lambda *args: switches.append(1) or select(*args))

    def counting(*args, **options):
        switches.clear()
        result = predict(*args, **options)
        passes.append(len(switches))
        return result

    monkeypatch.setattr(rollout_module, "predict_columns", counting)
    trainer.step()
    assert passes == [2 if share else 4]


def gradients(x, weight, bias, sizes, compute):
    """Those of a head in chunks of `sizes` rows, for fixed gradients of the logits."""
    torch.manual_seed(1)
    head = nn.Linear(weight.shape[1], weight.shape[0], bias is not None).to(weight.device, weight.dtype)
    head.weight.data.copy_(weight)
    if bias is not None:
        head.bias.data.copy_(bias)
    inputs = x.clone().requires_grad_()
    for rows in inputs.split(sizes):
        logits = compute(head, rows)
        logits.backward(torch.randn(logits.shape).bfloat16().to(logits.device, logits.dtype))
    return [inputs.grad, *(p.grad for p in head.parameters())]


def by_copy(head, rows):
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.bfloat16
    copy = get_copy(head, dtype)
    return multiply(head, head.weight.detach() if copy is None else copy, rows)


def by_autocast(head, rows):
    with torch.autocast("cpu", torch.bfloat16, enabled=rows.dtype != torch.float64):
        return head(rows)


@pytest.mark.parametrize("with_bias", [True, False])
def test_in_float64_the_gradient_is_that_of_plain_torch(with_bias):
    torch.manual_seed(0)
    x, weight = torch.randn(50, 24, dtype=torch.float64), torch.randn(90, 24, dtype=torch.float64)
    bias = torch.randn(90, dtype=torch.float64) if with_bias else None
    found, expected = (gradients(x, weight, bias, 13, way) for way in (by_copy, by_autocast))
    assert len(found) == len(expected) == 2 + with_bias
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_in_bfloat16_the_error_against_float64_is_not_larger_than_by_autocast(on_gpu):
    """On a GPU, whose products stay float32, it is a tenth: the factors are rounded alike, the sums are not."""
    torch.manual_seed(0)
    x, weight = torch.randn(520, 24).bfloat16().float(), torch.randn(90, 24).bfloat16().float()
    exact = [gradients(x.double(), weight.double(), None, size, by_autocast)[1] for size in (520, 130)]
    before = gradients(x, weight, None, 130, by_autocast)[1]
    if on_gpu:
        with pretended_gpu():
            after = [gradients(x.to(CUDA), weight.to(CUDA), None, 520, by_copy)[1].cpu()]
    else:
        after = [gradients(x, weight, None, size, by_copy)[1] for size in (520, 130)]
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


def test_what_is_left_to_autocast():
    head = nn.Linear(3, 5)
    assert get_copy(head, torch.bfloat16) is not None
    assert get_copy(head.bfloat16(), torch.bfloat16) is None
    assert get_copy(nn.Linear(3, 5).double(), torch.bfloat16) is None
    assert get_copy(type("Other", (nn.Linear,), {})(3, 5), torch.bfloat16) is None
    partitioned = nn.Linear(3, 5)
    partitioned.weight.ds_id = 0
    assert get_copy(partitioned, torch.bfloat16) is None


def test_the_size_of_a_chunk_does_not_follow_the_free_memory(monkeypatch):
    """A resumed run would round otherwise. By hand: 2**24 and 2**26 logits, of 259 tokens."""
    policy = Policy(gpt2())
    assert policy.positions_at_once == 64_776
    with pretended_gpu():
        policy.to(CUDA)
        for free in (0, 600 << 20, 80 << 30):
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 80 << 30))
            assert policy.positions_at_once == 259_107


@pytest.mark.parametrize("with_bias", [True, False])
def test_on_a_gpu_the_copy_is_filled_up_to_a_multiple_of_64_rows(with_bias):
    """Small whole numbers, which 16 bits hold: logits and gradients are exactly those of 90 rows, and no column is added."""
    torch.manual_seed(0)
    x, weight = (torch.randint(-3, 4, shape).float() for shape in ((50, 24), (90, 24)))
    bias = torch.randint(-3, 4, (90,)).float() if with_bias else None
    whole = torch.randint(-3, 4, (50, 90)).float()
    with pretended_gpu():
        head = nn.Linear(24, 90, with_bias)
        head.weight.data.copy_(weight)
        if bias is not None:
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
        found = [y.float().cpu() for y in (logits.detach(), frozen, inputs.grad, head.weight.grad)]
        to_bias = head.bias.grad.cpu() if with_bias else None
    expected = x @ weight.t() + (bias if with_bias else 0)
    for ours, theirs in zip(found, [expected, expected, whole @ weight, whole.t() @ x], strict=True):
        assert torch.equal(ours, theirs)
    assert to_bias is None or torch.equal(to_bias, whole.sum(dim=0))
