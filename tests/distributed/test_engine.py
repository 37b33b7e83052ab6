"""`use_amp` in both 16-bit types: what is computed, the scale of fp16's losses, and what counts as a skipped step."""

import json
import logging
import math

import pytest
import torch

from rlhf_dialog.distributed.engine import Engine
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models.loading import load_models
from rlhf_dialog.models.policy import teacher_forced
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.training.trainer import PPOTrainer
from tests.parts.saved_models import CPU, EPISODES, save
from tests.parts.tiny import gpt2
from tests.parts.trainers import make_trainer, numbers_of, settings

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save(tmp_path_factory.mktemp("model"), gpt2())


def build(path, amp="fp16", **keys):
    config = settings(model_path=path, use_amp=True, amp_dtype=amp, **keys)
    models = load_models(config, CPU)
    models.policy.lm.generation_config.eos_token_id = list(range(160, 240))
    like = make_trainer()
    torch.manual_seed(0)
    return PPOTrainer(config, models, like.prompts, like.scorer.reward, VecInfo())


@pytest.mark.parametrize(("amp", "share"), [("auto", True), ("fp16", False)])
def test_a_run_in_16_bit(path, amp, share):
    """The ratio and the KL of the start are checked in each; ids stay ids, results and weights are float32."""
    trainer = build(path, amp, use_share_model=share)
    inside, embedded, trunk = [], [], trainer.models.policy.lm.transformer
    trunk.h[0].mlp.c_fc.register_forward_hook(lambda _, args, out: inside.append(out.dtype))
    trunk.wte.register_forward_pre_hook(lambda _, args: embedded.append(args[0].dtype))
    found = [trainer.step() for _ in range(2)]
    assert set(inside) == {TYPES.get(amp, torch.bfloat16)}
    assert set(embedded) == {torch.long}
    assert all(p.dtype == torch.float32 for e in trainer.engines.values() for p in e.module.parameters())
    assert all(math.isfinite(x) for x in numbers_of(found[1]).values())
    assert ("ppo/overflow_steps" in found[1]) == (amp == "fp16")
    assert trainer.rollout.logprobs.dtype == torch.float32


def norm_of(gradients) -> float:
    return torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients if g is not None])).item()


def test_gradients_are_unscaled_before_they_are_clipped(path):
    """The norm that is told and clipped to is that of the true gradient, whatever the scale."""
    found = {}
    for amp in ("fp16", "bf16"):
        module = load_models(settings(model_path=path, use_amp=True, amp_dtype=amp), CPU).policy
        engine = Engine(module, torch.optim.AdamW(module.parameters()), World(), fp16=amp == "fp16")
        engine.backward(teacher_forced(module, TokenBatch(*EPISODES), 1.0).logprobs.sum() / 100)
        scale = engine.scaler.get_scale() if engine.scaler else 1
        raw = norm_of(p.grad for p in engine.trained.values())
        found[amp] = engine.grad_norm().item()
        assert raw / scale == pytest.approx(found[amp], rel=1e-4)
        engine.clip(2 * found[amp], found[amp])
        assert norm_of(p.grad for p in engine.trained.values()) == pytest.approx(found[amp], rel=1e-4)
        engine.clip(0.01, found[amp])
        assert norm_of(p.grad for p in engine.trained.values()) == pytest.approx(0.01, rel=1e-3)
    assert found["fp16"] == pytest.approx(found["bf16"], rel=0.05)
    assert found["fp16"] > 0.02


def too_large(trainer, scale):
    for engine in trainer.engines.values():
        engine.scaler.scale(torch.zeros(()))  # which makes it
        engine.scaler.update(scale)


def test_a_scale_that_is_too_large_is_lowered_and_does_not_stop_the_run(path, caplog):
    trainer = build(path, max_skipped_steps=1, num_mini_batch=6, ppo_epoch=2)
    too_large(trainer, 2.0**30)
    before = {name: p.detach().clone() for name, p in trainer.models.policy.named_parameters()}
    with caplog.at_level(logging.WARNING):
        found = trainer.step()
    assert found["ppo/overflow_steps"] == found["ppo/skipped_steps"] > 2
    assert trainer.update.skipped_in_a_row == 0
    assert trainer.engines["policy"].scaler.get_scale() == 2.0 ** (30 - found["ppo/overflow_steps"])
    assert "is skipped" not in caplog.text
    after = trainer.models.policy
    made = found["ppo/overflow_steps"] < 12
    assert any(not torch.equal(before[name], p) for name, p in after.named_parameters()) == made
    assert all(p.isfinite().all() for p in after.parameters())


@pytest.mark.slow
def test_gradients_that_are_bad_at_any_scale_stop_the_run_and_a_loss_that_is_not_finite_counts_at_once(path):
    trainer = build(path, max_skipped_steps=3, num_mini_batch=6, ppo_epoch=9)
    trainer.models.policy.lm.transformer.ln_f.weight.register_hook(lambda g: g * math.nan)
    with pytest.raises(RunStopped, match="3 in a row"):
        trainer.step()
    assert trainer.update.overflows == 16  # 65536 to 1
    trainer = build(path, max_skipped_steps=2)
    real = trainer.update.losses

    def broken(*args):
        losses, statistics = real(*args)
        return {k: x * math.nan for k, x in losses.items()}, {k: x * math.nan for k, x in statistics.items()}

    trainer.update.losses = broken
    with pytest.raises(RunStopped, match="2 in a row"):
        trainer.step()
    assert trainer.update.overflows == 0


def test_the_scales_are_part_of_a_checkpoint(path):
    first, second = build(path, use_share_model=False), build(path, use_share_model=False)
    too_large(first, 2.0**18)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [engine.scaler.get_scale() for engine in second.engines.values()] == [2.0**18] * 2


@pytest.mark.parametrize("use_amp", [False, True])
def test_the_moments_of_adam_are_there_from_the_start_and_are_those_of_its_first_step(use_amp):
    trainer = make_trainer(use_amp=use_amp, num_mini_batch=1, ppo_epoch=1)
    engine = trainer.engines["policy"]
    optimizer, trained = engine.optimizer, engine.trained.values()
    assert all({*optimizer.state[p]} == {"step", "exp_avg", "exp_avg_sq"} for p in trained)
    assert all(float(x.abs().sum()) == 0 for state in optimizer.state.values() for x in state.values())
    places = {id(x) for state in optimizer.state.values() for x in state.values()}
    trainer.step()
    plain = make_trainer(use_amp=use_amp, num_mini_batch=1, ppo_epoch=1)
    plain.engines["policy"].optimizer.state.clear()  # torch makes them in its first step
    plain.step()
    lazy = plain.engines["policy"].optimizer.state
    for p, q in zip(trained, plain.engines["policy"].trained.values(), strict=True):
        assert torch.equal(p, q)
        assert all(torch.equal(x, lazy[q][name]) for name, x in optimizer.state[p].items())
        assert all(x.dtype == lazy[q][name].dtype for name, x in optimizer.state[p].items())
    assert {id(x) for state in optimizer.state.values() for x in state.values()} == places
