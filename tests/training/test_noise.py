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
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.load_checks import SingleRowPredictions, use_packing
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.training import checks, rollout
from rlhf_dialog.training.update import PPOUpdate
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
@pytest.mark.parametrize(
    ("kind", "spread", "use_amp"),
    [("gpt2", 0.2, True), ("mistral", 0.15, True), ("gpt2", 0.1, False), ("outlier", 0.1, False)],
)
def test_a_healthy_deep_model_passes(kind, spread, use_amp, caplog):
    """Fixed tolerances would have stopped those in 16 bits: a mean |log ratio| of .01 nats, or a KL of .001."""
    trainer = deep_trainer(kind, spread, use_amp)
    with caplog.at_level(logging.DEBUG, logger="rlhf_dialog"):
        trainer.step()
    assert f"rounding in {16 if use_amp else 32} bits changes log-probabilities by" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    if use_amp:
        found, now = trainer.noise, trainer.rollout
        size = (now.logprobs - now.ref_logprobs).abs()[now.response_mask]
        assert 0.01 < size.mean() < 2 * found.mean
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
    """The positions of the response are one too large."""
    packed = pack(tokens)
    start = packed.place[packed.keep].min() % packed.width
    return replace(packed, positions=packed.positions + (packed.positions > start).long())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "use_amp", "fault"),
    [
        ("mistral", True, {"change": shown}),
        ("gpt2", True, {"dropout": True}),
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
