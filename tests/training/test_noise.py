"""The noise of 16-bit arithmetic: healthy deep models pass the checks of the run, and faults put into them do not."""

import logging
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.load_checks import SingleRowPredictions, use_packing
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.training import checks, rollout
from rlhf_dialog.training.update import PPOUpdate
from tests.parts.faulty import (
    Biased,
    CountsFromOne,
    CountsInTrunk,
    DrawsItself,
    Drops,
    Leaks,
    Narrows,
    SeesPadding,
    stopped,
    trainer_on,
)
from tests.parts.tiny import byte_tokenizer
from tests.parts.trainers import make_trainer

MODELS = ("gpt2", "mistral")
SENTENCE = "Quick brown foxes jump over lazy dogs , five wizards box"
PROMPTS = [Dialogue([SENTENCE[i : i + 16 + i % 5]], meta={"index": i}) for i in range(16)]
DEEP = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
OUTLIER = 24_761.0  # the largest activation of SmolLM2-135M-Instruct on English text
DEEP_KINDS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "outlier": (LlamaForCausalLM, LlamaConfig, {}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 24}),
}


def deep_lm(kind, seed=0, spread=0.1, layers=12):
    """A random model on the vocabulary of bytes: the larger the `spread` of its weights, the more does rounding change."""
    tokenizer = byte_tokenizer()
    words = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": 257, "pad_token_id": 256}
    torch.manual_seed(seed)
    if kind == "gpt2":
        sizes = {"n_positions": 256, "n_embd": 64, "n_layer": layers, "n_head": 4}
        lm = GPT2LMHeadModel(GPT2Config(**words, **sizes, initializer_range=spread))
    else:
        model, config, more = DEEP_KINDS[kind]
        shape = DEEP | {"num_hidden_layers": layers, "max_position_embeddings": 256, "initializer_range": spread}
        lm = model(config(**words, **shape, **more))
    if kind == "outlier":  # the channels beside it are not normalised any more: use a `spread` of 0.07, or they grow
        with torch.no_grad():
            lm.model.embed_tokens.weight[:, 0] = OUTLIER
            for name, weight in lm.named_parameters():
                if "norm" in name:  # what the outlier takes from the other channels
                    weight[1:] *= OUTLIER / DEEP["hidden_size"] ** 0.5
    assert use_packing(lm.eval(), SingleRowPredictions(lm))
    return lm


def deep_trainer(kind, spread=0.1, use_amp=True, **keys):
    lm = partial(deep_lm, kind, spread=0.07 if kind == "outlier" else spread)
    sizes = {"rollout_batch_size": 16, "max_new_tokens": 12, "num_mini_batch": 1, "ppo_epoch": 1}
    trainer = make_trainer(new_lm=lm, prompts=PROMPTS, use_amp=use_amp, **sizes, **keys)
    trainer.speaker.stop.end_ids = [-1]
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_healthy_deep_model_passes(kind, caplog):
    """The tolerances of before would have stopped it: a mean |log ratio| of .01 nats, or a KL of .001."""
    trainer = deep_trainer(kind, 0.2 if kind == "gpt2" else 0.15)
    with caplog.at_level(logging.INFO):
        trainer.step()
    assert "rounding in 16 bits changes log-probabilities by" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    found, now = trainer.noise, trainer.rollout
    size = (now.logprobs - now.ref_logprobs).abs()[now.response_mask]
    assert size.mean() > 0.01
    assert size.mean() < 2 * found.mean
    assert size.max() < 4 * found.largest
    assert found.mean > checks.LEAST_IN_16_BITS[0]
    assert found.largest > checks.LEAST_IN_16_BITS[1]


def hidden(tokens):
    """A prompt token is not seen."""
    mask = tokens.prompt_mask.clone()
    mask[:, -1] = False
    return replace(tokens, prompt_mask=mask)


def shown(tokens):
    """A padding token is seen, in the rows that have one."""
    mask = tokens.prompt_mask.clone()
    first = mask.int().argmax(dim=1)
    mask[torch.arange(len(mask)), (first - 1).clamp(min=0)] = True
    return replace(tokens, prompt_mask=mask)


def later(packed):
    """The positions of the response are one too large."""
    start = packed.place[packed.keep].min() % packed.width
    return replace(packed, positions=packed.positions + (packed.positions > start).long())


def broken_update(monkeypatch, change=None, temperature=1.0, dropout=False, pack=TokenBatch.pack):
    """The update computes log-probabilities with a fault."""
    real = PPOUpdate.predict

    def faulty(self, microbatch):
        self.placement.models.policy.train(dropout)
        config = self.config
        self.config = config.model_copy(update={"temperature": temperature * config.temperature})
        tokens = change(microbatch.tokens) if change else microbatch.tokens
        with monkeypatch.context() as patch:
            patch.setattr(TokenBatch, "pack", pack)
            predictions = real(self, microbatch._replace(tokens=tokens))
        self.config = config
        return predictions

    monkeypatch.setattr(PPOUpdate, "predict", faulty)


def pack_with_later_positions(tokens, pack=TokenBatch.pack):
    return later(pack(tokens))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "outlier"])
def test_a_healthy_deep_model_passes_in_float32(kind, caplog):
    trainer = deep_trainer(kind, use_amp=False)
    with caplog.at_level(logging.DEBUG, logger="rlhf_dialog"):
        trainer.step()
    assert "rounding in 32 bits changes log-probabilities by" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "use_amp", "fault"),
    [
        ("gpt2", True, {"change": hidden}),
        ("mistral", True, {"change": shown}),
        ("gpt2", True, {"dropout": True}),
        ("llama", True, {"temperature": 0.5}),
        ("llama", False, {"temperature": 0.9}),  # which 16 bits hide
        ("outlier", False, {"change": hidden}),
        ("llama", False, {"pack": pack_with_later_positions}),
    ],
)
def test_a_fault_in_the_update_stops_the_run(kind, use_amp, fault, monkeypatch):
    """In 16 bits they show as 30 to 170 times the noise."""
    trainer = deep_trainer(kind, use_amp=use_amp)
    broken_update(monkeypatch, **fault)
    with pytest.raises(RunStopped, match=r"ratio of new to old .* times the rounding noise"):
        trainer.step()


@pytest.mark.slow
def test_a_fault_in_the_reference_stops_the_run(monkeypatch):
    """It does not raise the noise, although that is measured with the reference."""
    real, pack = rollout.predict_columns, TokenBatch.pack

    def faulty(*inputs):
        with monkeypatch.context() as patch:
            patch.setattr(TokenBatch, "pack", lambda tokens: pack(hidden(tokens)))
            return real(*inputs)

    monkeypatch.setattr(rollout, "predict_columns", faulty)
    with pytest.raises(RunStopped, match="starts as its own reference"):
        deep_trainer("gpt2").step()


@pytest.mark.slow
@pytest.mark.parametrize("use_amp", [False, True])
def test_eight_rows_of_all_prompts_are_measured(monkeypatch, use_amp):
    """Not the first eight, which may all answer one prompt."""
    measured, predict = [], checks._predict

    def watched(model, tokens, *args, **options):
        measured.append(tokens)
        return predict(model, tokens, *args, **options)

    monkeypatch.setattr(checks, "_predict", watched)
    trainer = make_trainer(use_amp=use_amp, rollout_batch_size=72, max_new_tokens=3)
    trainer.step()
    together, *single = measured
    assert together.response_ids.tolist() == trainer.rollout.tokens.response_ids[::9].tolist()
    assert [len(row) for row in single] == [1] * 8


def test_the_limits_in_32_bits_allow_for_rare_tokens():
    """They round ten times as much as others, which shows in the largest noise and hardly in the mean."""
    found = checks.combine_rounding(torch.tensor([1e-5, 3e-5, 2e-5]), World(), 1.0, 32)
    assert (found.mean, found.largest) == (pytest.approx(2e-5), pytest.approx(3e-4))


def test_the_noise_of_no_rows_and_of_equal_kernels_is_the_least_one():
    least = checks.LEAST_IN_16_BITS
    for found in (torch.empty(0), torch.zeros(7)):
        at_one, at_half = (checks.combine_rounding(found, World(), temperature, 16) for temperature in (1.0, 0.5))
        assert (at_one.mean, at_one.largest) == least
        assert (at_half.mean, at_half.largest) == (2 * least[0], 2 * least[1])


def test_the_noise_is_that_of_all_ranks():
    """The mean counts tokens; each rank hears the same."""

    class Two(World):
        def gather(self, value):
            return [value, 0.5]

        def sum_numbers(self, numbers):
            return [numbers[0] + 0.9, numbers[1] + 7]

    found = checks.combine_rounding(torch.tensor([0.1, 0.2, 0.3]), Two(), 1.0, 16)
    assert (found.mean, found.largest) == (pytest.approx(1.5 / 10), 0.5)


def test_coarse_arithmetic_is_warned_of(caplog):
    checks.combine_rounding(torch.full((5,), 0.06), World(), 1.0, 16)
    assert "the checks of the run see only large faults" in caplog.text


def test_a_reference_in_training_mode_is_refused():
    trainer = trainer_on(GPT2LMHeadModel)
    trainer.models.ref_policy.train()
    with pytest.raises(RunStopped, match="the reference draws random numbers"):
        trainer.step()


@pytest.mark.parametrize("kind", [Drops, DrawsItself])
def test_dropout_in_the_reference_does_not_pass_for_noise(kind):
    message = stopped(trainer_on(kind, packing=False))
    assert "the reference draws random numbers" in message


@pytest.mark.parametrize(
    ("kind", "packing", "keys", "check"),
    [
        (Narrows, False, {}, "starts as its own reference"),
        (Leaks, True, {}, "starts as its own reference"),
        (SeesPadding, False, {}, "starts as its own reference"),
        (CountsInTrunk, True, {"ref_model": "another"}, "the ratio"),
        (CountsFromOne, False, {"ref_model": "another"}, "the ratio"),
        (Biased, False, {"ref_model": "another"}, "the ratio"),
    ],
)
def test_a_fault_of_the_users_model_stops_the_run_with_two_numbers_and_three_things_to_try(kind, packing, keys, check):
    message = stopped(trainer_on(kind, packing, healthy_reference=kind is Leaks, **keys))
    assert check in message
    assert re.search(r"by \S+ nats in the mean and \S+ at most", message)
    assert all(word in message for word in ("precision: fp32", "packing: false", "position_ids"))
