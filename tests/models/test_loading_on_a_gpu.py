"""How models come to a GPU, on the pretended one: in the types that they are used in."""

import pytest
import torch

from rlhf_dialog.models import load_checks
from rlhf_dialog.models.loading import Form, load_causal_lm, load_models
from rlhf_dialog.models.policy import Policy, packs, teacher_forced
from rlhf_dialog.models.precision import HALF, narrow
from rlhf_dialog.models.token_batch import TokenBatch
from tests.parts import pretended_gpu as gpus
from tests.parts import tiny
from tests.parts.saved_models import CPU, EPISODES, save
from tests.parts.trainers import settings

GPU = torch.device("cuda", 0)
SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 6}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    lm = tiny.llama(initializer_range=0.3, **SIZES)
    folder = save(tmp_path_factory.mktemp("half"), lm.bfloat16())
    load_causal_lm(
        folder, "model_path"
    )  # transformers initializes nothing any more where its first model is on this GPU
    return folder


def logprobs_of(lm, tokens):
    policy = Policy(lm, use_amp=True).eval()
    assert policy.has_plain_head
    with torch.no_grad():
        return teacher_forced(policy, tokens, 1.0).logprobs


@pytest.mark.slow
def test_frozen_models_have_the_numbers_of_before_bit_for_bit(path):
    before = load_causal_lm(path, "model_path")  # in float32, on a CPU
    with gpus.pretended_gpu():
        tokens = TokenBatch(*(x.to(GPU) for x in EPISODES))
        wide = logprobs_of(before.to(GPU), tokens)
        narrow(before.requires_grad_(False))
        lm = load_causal_lm(path, "model_path", form=Form(device=GPU, kept_types=HALF))
        assert {n: p.dtype for n, p in lm.named_parameters()} == {n: p.dtype for n, p in before.named_parameters()}
        assert torch.bfloat16 in {p.dtype for p in lm.parameters()}
        assert packs(lm)
        assert torch.equal(logprobs_of(lm, tokens), wide)


@pytest.mark.slow
def test_adapters_begin_as_on_a_cpu(path):
    keys = {"model_path": path, "use_lora": True, "lora_r": 2, "use_share_model": False, "precision": "bf16"}
    before = load_models(settings(**keys), CPU).policy.lm.state_dict()
    with gpus.pretended_gpu():
        after = load_models(settings(**keys), GPU).policy.lm.state_dict()
        assert after.keys() == before.keys()
        assert {after[name].dtype for name in after if ".lora_" in name} == {torch.float32}
        assert all(torch.equal(after[name].cpu().float(), before[name]) for name in after)


def test_the_tries_see_float32_and_the_first_layers(monkeypatch):
    monkeypatch.setattr(load_checks, "LAYERS", 4)
    with gpus.pretended_gpu():
        lm = tiny.llama(**SIZES).bfloat16().to(GPU)
        whole = list(lm.model.layers)
        with load_checks.trial_form(lm):
            assert list(lm.model.layers) == whole[:4]
            assert {p.dtype for p in lm.parameters()} == {torch.float32}
            assert torch.get_float32_matmul_precision() == "highest"
        assert list(lm.model.layers) == whole
        assert {p.dtype for p in lm.parameters()} == {torch.bfloat16}
    cpu = tiny.llama(**SIZES).bfloat16()
    with load_checks.trial_form(cpu):
        assert len(cpu.model.layers) == 6
        assert {p.dtype for p in cpu.parameters()} == {torch.bfloat16}
