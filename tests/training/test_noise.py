"""The noise of 16-bit arithmetic: healthy deep models pass the checks of the run, and faults put into them do not."""

import logging
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import GPT2LMHeadModel

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models import loading
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.runs.training_state import load_training
from rlhf_dialog.training import checks, rollout
from rlhf_dialog.training.trainer import PPOTrainer
from rlhf_dialog.training.update import PPOUpdate
from tests.parts import saving, tiny
from tests.parts.deep import deep_lm
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
from tests.parts.pretended_gpu import pretended_gpu
from tests.parts.trainers import Places, make_trainer, settings

MODELS = ("gpt2", "llama", "qwen2", "mistral")
SENTENCE = "Quick brown foxes jump over lazy dogs , five wizards box"
PROMPTS = [Dialogue([SENTENCE[i : i + 16 + i % 5]], meta={"index": i}) for i in range(16)]


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
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    "fault", [{"change": hidden}, {"change": shown}, {"temperature": 0.5}], ids=["hidden", "shown", "temperature"]
)
def test_a_fault_in_the_update_stops_the_run(kind, fault, monkeypatch):
    """They show as 30 to 170 times the noise."""
    trainer = deep_trainer(kind)
    broken_update(monkeypatch, **fault)
    with pytest.raises(RunStopped, match=r"ratio of new to old .* times the rounding noise"):
        trainer.step()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama", "outlier"])
def test_a_healthy_deep_model_passes_in_float32(kind, caplog):
    trainer = deep_trainer(kind, use_amp=False)
    with caplog.at_level(logging.DEBUG, logger="rlhf_dialog"):
        trainer.step()
    assert "rounding in 32 bits changes log-probabilities by" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama", "outlier"])
@pytest.mark.parametrize(
    "fault", [{"change": hidden}, {"change": shown}, {"temperature": 0.9}], ids=["hidden", "shown", "temperature"]
)
def test_a_fault_in_the_update_stops_a_run_in_float32(kind, fault, monkeypatch):
    """A tenth of the temperature too, which 16 bits hide."""
    trainer = deep_trainer(kind, use_amp=False)
    broken_update(monkeypatch, **fault)
    with pytest.raises(RunStopped, match=r"ratio of new to old .* times the rounding noise"):
        trainer.step()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_resumed_run_in_float32_is_warned_of_a_fault_alone(kind, is_wrong, tmp_path, monkeypatch, caplog):
    """Two iterations in a new process, far from the reference by which their noise is measured; a temperature too low by 2e-5."""
    first, resumed = (deep_trainer(kind, use_amp=False, lr=3e-3) for _ in range(2))
    saving.steps(first, 2)
    saving.save(first, tmp_path / "saved")
    models = saving.modules(resumed)
    resumed.load_state_dict(load_training(tmp_path / "saved", models, resumed.optimizers, World()))
    if is_wrong:
        broken_update(monkeypatch, temperature=1 - 2e-5)
    saving.steps(resumed, 2)
    assert resumed.iteration == 4
    warnings = [record for record in caplog.records if record.levelno > logging.INFO]
    assert len(warnings) == is_wrong
    assert ("times the rounding noise that this run measured" in caplog.text) == is_wrong


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama", "outlier"])
def test_positions_that_are_off_by_one_stop_a_run_in_float32(kind, monkeypatch):
    trainer = deep_trainer(kind, use_amp=False)
    broken_update(monkeypatch, pack=pack_with_later_positions)
    with pytest.raises(RunStopped, match="ratio of new to old"):
        trainer.step()


@pytest.mark.slow
def test_dropout_in_the_update_stops_the_run(monkeypatch):
    trainer = deep_trainer("gpt2")
    broken_update(monkeypatch, dropout=True)
    with pytest.raises(RunStopped, match="ratio of new to old"):
        trainer.step()


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_positions_that_are_off_by_one(kind, monkeypatch, caplog):
    """Rotary positions are differences, so random models of this kind show the fault as about 10 times the noise: a warning."""
    trainer = deep_trainer(kind)
    broken_update(monkeypatch, pack=pack_with_later_positions)
    if kind == "gpt2":
        with pytest.raises(RunStopped, match="ratio of new to old"):
            trainer.step()
    else:
        trainer.step()
        assert "times the rounding noise that this run measured" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_fault_in_the_reference_stops_the_run(kind, monkeypatch):
    """It does not raise the noise, although that is measured with the reference."""
    real, pack = rollout.predict_columns, TokenBatch.pack

    def faulty(*inputs):
        with monkeypatch.context() as patch:
            patch.setattr(TokenBatch, "pack", lambda tokens: pack(hidden(tokens)))
            return real(*inputs)

    monkeypatch.setattr(rollout, "predict_columns", faulty)
    with pytest.raises(RunStopped, match="starts as its own reference"):
        deep_trainer(kind).step()


@pytest.mark.slow
def test_the_noise_is_measured_once_and_draws_no_random_number(monkeypatch):
    calls, measure = [], checks.measure_rounding

    def watched(*args):
        before = torch.get_rng_state()
        calls.append(measure(*args))
        assert torch.equal(torch.get_rng_state(), before)
        return calls[-1]

    monkeypatch.setattr(checks, "measure_rounding", watched)
    for use_amp in (False, True):
        calls.clear()
        trainer = make_trainer(use_amp=use_amp, top_k=5)
        for _ in range(2):
            trainer.step()
        (found,) = calls
        assert len(found) >= trainer.plan.num_responses


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


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_a_run_on_a_gpu_without_a_key_computes_in_bf16(lora, monkeypatch):
    """On the pretended GPU: the reference has the 16 bits of the checkpoint, and starts with a KL of 0, to 1/100 of the noise."""
    found = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", found.append)
    checkpoint = tiny.gpt2().bfloat16().float().eval()
    monkeypatch.setattr(loading, "load_causal_lm", lambda *_, **__: checkpoint)
    monkeypatch.setattr(loading, "load_tokenizer", lambda *_: tiny.byte_tokenizer())
    with pretended_gpu():
        config, device = settings(use_lora=lora), torch.device("cuda", 0)
        models = loading.load_models(config, device)
        trainer = PPOTrainer(config, models, PROMPTS, Places(), VecInfo(), World(device=device))
        metrics = trainer.step()
        assert models.ref_policy.lm.transformer.h[0].attn.c_attn.weight.dtype == torch.bfloat16
    noise_of_run = trainer.noise
    for name in ("objective/kl", "objective/kl_initial"):
        assert abs(metrics[name]) < noise_of_run.mean / 100, name
    assert (trainer.placement.precision, found) == ("bf16", ["high"])


@pytest.mark.parametrize("kind", [Drops, DrawsItself])
def test_dropout_in_the_reference_does_not_pass_for_noise(kind):
    message = stopped(trainer_on(kind, packing=False))
    assert "the reference draws random numbers" in message


@pytest.mark.parametrize(
    ("keys", "check"), [({}, "starts as its own reference"), ({"ref_model": "another"}, "the ratio")]
)
@pytest.mark.parametrize(
    ("kind", "packing"),
    [
        (Narrows, False),
        (Leaks, True),
        (SeesPadding, False),
        (CountsInTrunk, True),
        (CountsFromOne, False),
        (Biased, False),
    ],
)
def test_a_fault_of_the_users_model_stops_the_run_with_two_numbers_and_three_things_to_try(kind, packing, keys, check):
    message = stopped(trainer_on(kind, packing, healthy_reference=kind is Leaks, **keys))
    assert check in message
    assert re.search(r"by \S+ nats in the mean and \S+ at most", message)
    assert all(word in message for word in ("precision: fp32", "packing: false", "position_ids"))


def test_a_policy_in_training_mode_stops_the_run():
    trainer = trainer_on(GPT2LMHeadModel)
    trainer.models.policy.train()
    assert "starts as its own reference" in stopped(trainer)
