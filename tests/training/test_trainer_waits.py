"""Whole iterations on a pretended GPU: no tensor is on the wrong device, and the host rarely waits."""

import pytest
import torch

from rlhf_dialog.distributed.world import World
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models.loading import Models, load_models
from rlhf_dialog.training.episodes import EpisodeInputs
from rlhf_dialog.training.rollout import collect_rollout
from rlhf_dialog.training.trainer import PPOTrainer
from tests.parts.pretended_gpu import CUDA, pretended_gpu
from tests.parts.saved_models import CPU, save
from tests.parts.tiny import gpt2, llama
from tests.parts.trainers import PROMPTS, Places, numbers_of, settings

MODELS = {"gpt2": lambda: gpt2(n_layer=1, n_embd=16), "llama": lambda: llama(num_hidden_layers=1)}


def build(kind, tmp_path, device, size=4, **keys):
    """A trainer as PPOAgent builds it, whose iteration is one step of 8 responses in microbatches of `size`."""
    small = {"rollout_batch_size": 8, "num_mini_batch": 1, "ppo_epoch": 1, "max_new_tokens": 4, "lr": 1e-4}
    config = settings(model_path=save(tmp_path, MODELS[kind]()), per_device_microbatch_size=size, **small, **keys)
    models = load_models(config, CPU)
    models.policy.lm.generation_config.eos_token_id = list(range(160, 240))
    moved = [model and model.to(device) for model in (models.policy, models.critic, models.ref_policy)]
    torch.manual_seed(1)
    return PPOTrainer(config, Models(*moved, models.tokenizer), PROMPTS, Places(), VecInfo(), World(device=device))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("gpt2", {"use_share_model": False, "top_k": 20, "use_amp": True, "amp_dtype": "bf16", "kl_in": "loss"}),
        ("gpt2", {"use_share_model": True, "use_amp": True, "amp_dtype": "fp16"}),
        ("llama", {"advantage_estimator": "grpo", "top_p": 0.9, "kl_in": "loss"}),
        ("llama", {"use_share_model": False, "use_lora": True, "lora_r": 2}),
    ],
)
def test_a_microbatch_waits_for_nothing(kind, keys, tmp_path):
    """More of them add no wait after the first iteration, nor does an operation mix devices, which would raise."""
    waits = []
    for size in (4, 2):
        with pretended_gpu() as gpu:
            trainer = build(kind, tmp_path, CUDA, size, **keys)
            metrics = trainer.step()
            gpu.reset()
            trainer.step()
            waits.append(gpu.num_waits)
    assert 0 < waits[1] <= waits[0] <= 30
    if "use_amp" not in keys:
        expected = build(kind, tmp_path, CPU, 2, **keys).step()
        assert numbers_of(metrics) == pytest.approx(numbers_of(expected), rel=1e-3, abs=1e-5)


class Asks:
    def reset(self, seed=None):
        self.num_heard = 0
        return "a ?", {}

    def step(self, reply):
        self.num_heard += 1
        return "b ?", float(self.num_heard == 1), self.num_heard == 2, False, {}


@pytest.mark.slow
def test_a_dialogue_of_several_turns(tmp_path):
    """It has no tensor on the wrong device, and its rollout is that of the CPU."""

    def collect(trainer):
        inputs = EpisodeInputs([Asks() for _ in range(4)])
        return collect_rollout(inputs, trainer.responder, trainer.scorer, trainer.models)

    expected = collect(build("gpt2", tmp_path, CPU, top_k=20))
    assert len(expected.dialogues[0].turns) > 1
    with pretended_gpu() as gpu:
        trainer = build("gpt2", tmp_path, CUDA, top_k=20)
        gpu.reset()
        found = collect(trainer)
        assert gpu.num_waits <= 20
        assert found.dialogues == expected.dialogues
        for name in ("turn_rewards", "logprobs", "ref_logprobs", "values"):
            torch.testing.assert_close(getattr(found, name).cpu(), getattr(expected, name))
        for name in ("response_ids", "response_mask", "support"):
            assert torch.equal(getattr(found.tokens, name).cpu(), getattr(expected.tokens, name))
    assert expected.turn_rewards.any()
