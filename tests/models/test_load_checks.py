"""What a model must show when it is loaded, what passes for rounding, and each mistake of packed or padded rows that shows."""

import math

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from rlhf_dialog.errors import UserError
from rlhf_dialog.models import load_checks
from rlhf_dialog.models import packing as packing_module
from rlhf_dialog.models.load_checks import (
    LEAST,
    MOST,
    SingleRowPredictions,
    check_left_padding,
    largest,
    left_padded_logprobs,
    limit_of,
    logprobs,
    packing_error,
    probe_ids,
    use_packing,
)
from rlhf_dialog.models.packing import ATTENTION, KeyValues, can_pack, run_packed
from rlhf_dialog.models.policy import Policy, packs
from tests.parts.faulty import CountsFromOne, CountsPadding, DrawsItself, Drops, Narrows, SeesPadding, new
from tests.parts.pretended_gpu import CUDA, pretended_gpu
from tests.parts.tiny import byte_tokenizer, gpt2, llama
from tests.parts.zoo import GROUPED, LIKE_LLAMA, new_lm


@pytest.fixture(autouse=True)
def all_rows(monkeypatch):
    monkeypatch.setattr(load_checks, "ROWS", 8)


@pytest.mark.parametrize(("positions", "tokenizer"), [(33, None), (10**9, byte_tokenizer()), (None, None)])
def test_rows_are_of_different_lengths_and_fit_the_model(positions, tokenizer):
    rows = probe_ids(tokenizer, 259, positions)
    lengths = [len(row) for row in rows]
    assert lengths == list(range(min(96, positions or 96), 0, -2))[:8]
    assert all(row.min() >= 0 and row.max() < 259 for row in rows)
    assert all(row.max() < 5 for row in probe_ids(tokenizer, 5, 40))


def test_predictions_are_those_of_a_plain_loop():
    lm = gpt2().eval()
    alone = SingleRowPredictions(lm, byte_tokenizer())
    for ids, found in zip(alone.ids, alone.logprobs, strict=True):
        with torch.no_grad():
            logits = lm(input_ids=ids.unsqueeze(0)).logits[0].double().log_softmax(-1)
        expected = torch.stack([logits[place, ids[place + 1]] for place in range(len(ids) - 1)])
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    assert 0 <= alone.together < 1e-5 > alone.shorter >= 0
    assert alone.difference(torch.cat(alone.logprobs)) == 0
    lm.set_attn_implementation("sdpa")
    assert alone.difference(left_padded_logprobs(Policy(lm), alone.ids)) < 1e-5
    assert alone.difference(logprobs(Policy(lm), alone.ids)) < 1e-5


def test_limits_are_twenty_times_the_noise_within_two_bounds():
    assert limit_of(0.0) == 20 * LEAST == pytest.approx(2e-5)
    assert limit_of(1e-5, 3e-5) == pytest.approx(6e-4)
    assert limit_of(1e-5, 0.1) == MOST == 1e-2
    assert limit_of(math.inf) == MOST
    assert largest(torch.tensor([1.0, 2.0]), torch.tensor([1.5, 2.0])) == 0.5
    assert largest(torch.tensor([math.nan]), torch.tensor([1.0])) == math.inf
    assert largest(torch.ones(2), torch.ones(3)) == math.inf


def unpacked_again(lm):
    """The model is as it was, and gives finite predictions."""
    assert not packs(lm)
    assert lm(torch.arange(2, 8).unsqueeze(0)).logits.isfinite().all()


def test_models_that_cannot_pack_fall_back():
    mamba = MambaForCausalLM(MambaConfig(vocab_size=61, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()
    gemma = Gemma2ForCausalLM(Gemma2Config(**GROUPED)).eval()
    for lm in (mamba, gemma, new_lm("bloom", dtype=torch.float32)):
        usual = lm.config._attn_implementation
        assert not can_pack(lm)
        assert not use_packing(lm, SingleRowPredictions(lm))
        assert lm.config._attn_implementation == usual
        unpacked_again(lm)


@pytest.mark.parametrize("error", [2e-3, float("nan"), TypeError("packing")])
def test_a_difference_or_an_error_falls_back(monkeypatch, error):
    def failing(lm, _):
        assert packs(lm)
        if isinstance(error, Exception):
            raise error
        return error

    monkeypatch.setattr(load_checks, "packing_error", failing)
    lm = new_lm("llama", packing=False)
    assert not use_packing(lm, SingleRowPredictions(lm))
    assert lm.config._attn_implementation == "sdpa"
    unpacked_again(lm)
    monkeypatch.setattr(load_checks, "packing_error", lambda *_: 1e-6)
    assert use_packing(lm, SingleRowPredictions(lm))


class SeesTheRow(LlamaForCausalLM):
    """A Llama whose head sees something that packed rows do not have: the mean of all tokens of the row."""

    def forward(self, input_ids=None, **options):
        output = super().forward(input_ids=input_ids, **options)
        output.logits = output.logits + output.logits.mean(dim=1, keepdim=True)
        return output


@pytest.mark.parametrize("wrong", ["head", "causal", "positions", "decode", "rows"])
def test_the_probe_sees_what_is_wrong(monkeypatch, wrong):
    """Each mistake that a model's own attention could make of packed rows is large enough to be seen."""
    lm = SeesTheRow(LlamaConfig(**LIKE_LLAMA)).eval() if wrong == "head" else new_lm("llama", packing=False)
    alone = SingleRowPredictions(lm)
    if wrong == "causal":
        plain = torch.nn.functional.scaled_dot_product_attention
        monkeypatch.setattr(packing_module, "causal_attention", lambda q, k, v, *_: plain(q, k, v))
    elif wrong == "positions":
        monkeypatch.setattr(
            "rlhf_dialog.models.policy.run_packed", lambda m, ids, p, *rest: run_packed(m, ids, 2 * p, *rest)
        )
    elif wrong == "decode":
        monkeypatch.setattr(KeyValues, "append", lambda self, layer, k, v: self.layers[layer])
    elif wrong == "rows":
        monkeypatch.setattr(packing_module, "pad_rows", lambda x, rows: x)
        monkeypatch.setattr(KeyValues, "begin", lambda *_: None)
    assert not use_packing(lm, alone)
    unpacked_again(lm)
    if wrong in ("causal", "positions"):  # others give an error
        lm.set_attn_implementation(ATTENTION)
        assert packing_error(lm, alone) > 1e-2


@pytest.mark.parametrize(
    ("kind", "when"),
    [
        (Drops, "its last tokens are cut off"),
        (DrawsItself, "its last tokens are cut off"),
        (Narrows, "tokens come one by one"),
        (CountsFromOne, "tokens come one by one"),
        (CountsPadding, "a prompt is padded on the left"),
        (SeesPadding, "a prompt is padded on the left"),
    ],
)
def test_a_model_with_a_fault_is_refused_and_a_healthy_one_passes(kind, when):
    lm, healthy = new(kind, packing=False), new(GPT2LMHeadModel, packing=False)
    with pytest.raises(UserError, match=f"model_path: 'x' .* nats when {when}"):
        check_left_padding(lm, SingleRowPredictions(lm), "x", "model_path")
    check_left_padding(healthy, SingleRowPredictions(healthy), "x", "model_path")


def test_the_tries_see_float32_and_the_first_layers(monkeypatch):
    monkeypatch.setattr(load_checks, "LAYERS", 4)
    with pretended_gpu():
        lm = llama(num_hidden_layers=6).bfloat16().to(CUDA)
        whole = list(lm.model.layers)
        with load_checks.trial_form(lm):
            assert list(lm.model.layers) == whole[:4]
            assert {p.dtype for p in lm.parameters()} == {torch.float32}
            assert torch.get_float32_matmul_precision() == "highest"
        assert list(lm.model.layers) == whole
        assert {p.dtype for p in lm.parameters()} == {torch.bfloat16}
    half, full = llama(num_hidden_layers=6).bfloat16(), llama(num_hidden_layers=6)
    with load_checks.trial_form(half), load_checks.trial_form(full):
        assert (len(half.model.layers), len(full.model.layers)) == (4, 6)
        assert {p.dtype for p in half.parameters()} == {p.dtype for p in full.parameters()} == {torch.float32}
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
