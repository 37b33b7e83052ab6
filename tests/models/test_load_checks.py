"""The yardstick of the tries of a model: rows of text, what is predicted of them alone, and what passes for rounding.

What a model must show when it is loaded, and each mistake that it might make of packed or padded rows."""

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
    PreTrainedModel,
)

from rlhf_dialog.errors import UserError
from rlhf_dialog.models import load_checks as models_module
from rlhf_dialog.models import packing as packing_module
from rlhf_dialog.models.load_checks import (
    LEAST,
    MOST,
    SingleRowPredictions,
    check_left_padding,
    in_batch,
    largest,
    left_padded_logprobs,
    limit_of,
    logprobs,
    packing_error,
    predicted_on_texts,
    probe_ids,
    use_packing,
)
from rlhf_dialog.models.packing import ATTENTION, KeyValues, can_pack, run_packed
from rlhf_dialog.models.policy import Policy, packs
from tests.parts.faulty import CountsFromOne, CountsPadding, DrawsItself, Drops, Narrows, SeesPadding, new
from tests.parts.tiny import byte_tokenizer, gpt2
from tests.parts.zoo import GROUPED, LIKE_LLAMA, new_lm


@pytest.mark.parametrize(("positions", "has_tokenizer"), [(8, True), (33, False), (10**9, True)])
def test_rows_are_of_different_lengths_and_fit_the_model(positions, has_tokenizer):
    rows = probe_ids(byte_tokenizer() if has_tokenizer else None, 259, positions)
    assert len(rows) >= 8
    assert sum(len(row) - 1 for row in rows) >= 500
    lengths = {len(row) for row in rows}
    assert max(lengths) == min(96, positions)
    assert len(lengths) > 1
    assert all(row.min() >= 0 and row.max() < 259 for row in rows)
    assert all(row.max() < 5 for row in probe_ids(byte_tokenizer(), 5, 40))
    assert all(map(torch.equal, rows, probe_ids(byte_tokenizer() if has_tokenizer else None, 259, positions)))


def test_predictions_are_those_of_a_plain_loop():
    lm = gpt2().eval()
    rows = probe_ids(byte_tokenizer(), 259, 30)
    alone = SingleRowPredictions(lm, rows)
    for ids, found in zip(rows, alone.logprobs, strict=True):
        with torch.no_grad():
            logits = lm(input_ids=ids.unsqueeze(0)).logits[0].double().log_softmax(-1)
        expected = torch.stack([logits[place, ids[place + 1]] for place in range(len(ids) - 1)])
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    assert 0 <= alone.together < 1e-5 > alone.shorter >= 0
    assert alone.difference(torch.cat(alone.logprobs)) == 0
    lm.set_attn_implementation("sdpa")
    assert alone.difference(left_padded_logprobs(Policy(lm), rows)) < 1e-5
    assert alone.difference(logprobs(Policy(lm), rows)) < 1e-5


def test_a_batch_is_padded_on_either_side():
    rows = [torch.tensor([1, 2, 3]), torch.tensor([4])]
    for side, ids, mask in (("right", [4, 0, 0], [1, 0, 0]), ("left", [0, 0, 4], [0, 0, 1])):
        found = in_batch(rows, torch.device("cpu"), side)
        assert found[0].tolist() == [[1, 2, 3], ids]
        assert found[1].int().tolist() == [[1, 1, 1], mask]


def test_limits_are_twenty_times_the_noise_within_two_bounds():
    assert limit_of(0.0) == 20 * LEAST == pytest.approx(2e-5)
    assert limit_of(1e-5, 3e-5) == pytest.approx(6e-4)
    assert limit_of(1e-5, 0.1) == MOST == 1e-2
    assert limit_of(math.inf) == MOST


def test_what_is_no_number_or_of_another_shape_differs_by_infinity():
    assert largest(torch.tensor([1.0, 2.0]), torch.tensor([1.5, 2.0])) == 0.5
    assert largest(torch.tensor([math.nan]), torch.tensor([1.0])) == math.inf
    assert largest(torch.ones(2), torch.ones(3)) == math.inf


def unpacked_again(lm: PreTrainedModel) -> None:
    """The model is as it was, and gives finite predictions."""
    assert not packs(lm)
    assert lm(torch.arange(2, 8).unsqueeze(0)).logits.isfinite().all()


def test_models_that_cannot_pack_fall_back():
    mamba = MambaForCausalLM(MambaConfig(vocab_size=61, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()
    gemma = Gemma2ForCausalLM(Gemma2Config(**GROUPED)).eval()
    for lm in (mamba, gemma, new_lm("bloom", dtype=torch.float32)):
        usual = lm.config._attn_implementation
        assert not can_pack(lm)
        assert not use_packing(lm, predicted_on_texts(lm))
        assert lm.config._attn_implementation == usual
        unpacked_again(lm)


class Faulty(LlamaForCausalLM):
    """A Llama whose head sees something that packed rows do not have: the mean of all tokens of the row."""

    def forward(self, input_ids=None, **options):
        output = super().forward(input_ids=input_ids, **options)
        output.logits = output.logits + output.logits.mean(dim=1, keepdim=True)
        return output


@pytest.mark.parametrize("error", [2e-3, float("nan"), TypeError("packing")])
def test_a_difference_or_an_error_falls_back(monkeypatch, error):
    def failing(lm, _):
        assert packs(lm)
        if isinstance(error, Exception):
            raise error
        return error

    monkeypatch.setattr(models_module, "packing_error", failing)
    lm = new_lm("llama", packing=False)
    assert not use_packing(lm, predicted_on_texts(lm))
    assert lm.config._attn_implementation == "sdpa"
    unpacked_again(lm)
    monkeypatch.setattr(models_module, "packing_error", lambda *_: 1e-6)
    assert use_packing(lm, predicted_on_texts(lm))


def test_a_head_that_looks_at_the_whole_row_falls_back():
    lm = Faulty(LlamaConfig(**LIKE_LLAMA)).eval()
    assert not use_packing(lm, predicted_on_texts(lm))
    unpacked_again(lm)


@pytest.mark.parametrize("wrong", ["causal", "positions", "decode", "rows"])
def test_the_probe_sees_what_is_wrong(monkeypatch, wrong):
    """Each mistake that a model's own attention could make of packed rows is large enough to be seen."""
    lm = new_lm("llama", packing=False)
    alone = predicted_on_texts(lm)
    if wrong == "causal":
        monkeypatch.setattr(
            packing_module,
            "causal_attention",
            lambda q, k, v, *_: torch.nn.functional.scaled_dot_product_attention(q, k, v),
        )
    elif wrong == "positions":
        monkeypatch.setattr(
            "rlhf_dialog.models.policy.run_packed", lambda m, ids, p, *rest: run_packed(m, ids, 2 * p, *rest)
        )
    elif wrong == "decode":
        monkeypatch.setattr(KeyValues, "append", lambda self, layer, k, v: self.layers[layer])
    else:
        monkeypatch.setattr(packing_module, "pad_rows", lambda x, rows: x)
        monkeypatch.setattr(KeyValues, "begin", lambda *_: None)
    assert not use_packing(lm, predicted_on_texts(lm))
    unpacked_again(lm)
    if wrong not in ("decode", "rows"):  # these give an error
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
def test_a_model_with_a_fault_is_refused(kind, when):
    lm = new(kind, packing=False)
    with pytest.raises(UserError, match=f"model_path: 'x' .* nats when {when}"):
        check_left_padding(lm, predicted_on_texts(lm), "x", "model_path")


def test_a_healthy_model_passes():
    lm = new(GPT2LMHeadModel, packing=False)
    check_left_padding(lm, predicted_on_texts(lm), "x", "model_path")
