"""The noise of 16-bit arithmetic: healthy deep models pass the checks of the run, and models with faults do not."""

import logging
import re

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.models.load_checks import SingleRowPredictions, use_packing
from rlhf_dialog.training import checks
from tests.parts.faulty import (
    Biased,
    CountsInTrunk,
    DrawsItself,
    Drops,
    Leaks,
    SeesPadding,
    stopped,
    trainer_on,
)
from tests.parts.tiny import byte_tokenizer
from tests.parts.trainers import make_trainer

SENTENCE = "Quick brown foxes jump over lazy dogs , five wizards box"
PROMPTS = [Dialogue([SENTENCE[i : i + 16 + i % 5]], meta={"index": i}) for i in range(16)]
WIDTH = 64
WORDS = {"vocab_size": len(byte_tokenizer()), "bos_token_id": None, "eos_token_id": 257, "pad_token_id": 256}
OUTLIER = 24_761.0  # the largest activation of SmolLM2-135M-Instruct on English text


def deep_gpt2(spread):
    """A random model of 12 layers: the larger the `spread` of its weights, the more does rounding change."""
    sizes = {"n_positions": 256, "n_embd": WIDTH, "n_layer": 12, "n_head": 4, "initializer_range": spread}
    return GPT2LMHeadModel(GPT2Config(**WORDS, **sizes))


def deep_outlier(spread):
    sizes = {"hidden_size": WIDTH, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    more = {"num_hidden_layers": 12, "max_position_embeddings": 256, "initializer_range": spread}
    lm = LlamaForCausalLM(LlamaConfig(**WORDS, **sizes, **more))
    with torch.no_grad():
        lm.model.embed_tokens.weight[:, 0] = OUTLIER
        for name, weight in lm.named_parameters():
            if "norm" in name:  # what the outlier takes from the other channels
                weight[1:] *= OUTLIER / WIDTH**0.5
    return lm


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "spread", "use_amp"),
    [(deep_gpt2, 0.2, True), (deep_gpt2, 0.1, False), (deep_outlier, 0.07, False)],
)
def test_a_healthy_deep_model_passes(kind, spread, use_amp, caplog):
    """Fixed tolerances would have stopped those in 16 bits: a mean |log ratio| of .01 nats, or a KL of .001."""

    def build(seed=0):
        torch.manual_seed(seed)
        lm = kind(spread).eval()
        assert use_packing(lm, SingleRowPredictions(lm))
        return lm

    sizes = {"rollout_batch_size": 16, "max_new_tokens": 12, "num_mini_batch": 1, "ppo_epoch": 1}
    trainer = make_trainer(new_lm=build, prompts=PROMPTS, use_amp=use_amp, **sizes)
    trainer.responder.stop.end_ids = [-1]
    with caplog.at_level(logging.DEBUG, logger="rlhf_dialog"):
        trainer.step()
    assert f"rounding in {16 if use_amp else 32} bits changes log-probabilities by" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    if use_amp:
        found, now = trainer.noise, trainer.rollout
        size = (now.logprobs - now.ref_logprobs).abs()[now.response_mask]
        assert 0.005 < size.mean() < 2 * found.mean
        assert size.max() < 4 * found.largest
        assert found.mean > checks.LEAST_IN_16_BITS[0]
        assert found.largest > checks.LEAST_IN_16_BITS[1]


def test_eight_rows_of_all_prompts_are_measured(monkeypatch):
    """Not the first eight, which may all answer one prompt."""
    measured, predict = [], checks._predict

    def watched(model, tokens, *args, **options):
        measured.append(tokens)
        return predict(model, tokens, *args, **options)

    monkeypatch.setattr(checks, "_predict", watched)
    trainer = make_trainer(rollout_batch_size=72, max_new_tokens=3)
    trainer.step()
    together, *single = measured
    assert together.response_ids.tolist() == trainer.rollout.tokens.response_ids[::9].tolist()
    assert [len(row) for row in single] == [1] * 8


@pytest.mark.parametrize("kind", [Drops, DrawsItself])
def test_dropout_in_the_reference_does_not_pass_for_noise(kind):
    assert "the reference draws random numbers" in stopped(trainer_on(kind, packing=False))


@pytest.mark.parametrize(
    ("kind", "packing", "keys", "check"),
    [
        (Leaks, True, {}, "starts as its own reference"),
        (SeesPadding, False, {}, "starts as its own reference"),
        (CountsInTrunk, True, {"ref_model": "another"}, "the ratio"),
        (Biased, False, {"ref_model": "another"}, "the ratio"),
    ],
)
def test_a_fault_of_the_users_model_stops_the_run_with_two_numbers_and_three_things_to_try(kind, packing, keys, check):
    message = stopped(trainer_on(kind, packing, healthy_reference=kind is Leaks, **keys))
    assert check in message
    assert re.search(r"by \S+ nats in the mean and \S+ at most", message)
    assert all(word in message for word in ("precision: fp32", "packing: false", "position_ids"))
