"""Whole iterations on a pretended GPU: no tensor is on the wrong device, and the host rarely waits.

A microbatch's waits are those of an iteration with twice as many microbatches, less those of one with half of them.
"""

from collections import Counter

import pytest
import torch

from rlhf_dialog.distributed.world import World
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models.loading import Models, load_models
from rlhf_dialog.training import rollout as rollout_module
from rlhf_dialog.training.episodes import EpisodeInputs
from rlhf_dialog.training.rollout import collect_rollout
from rlhf_dialog.training.trainer import PPOTrainer
from rlhf_dialog.training.update import PPOUpdate
from tests.parts.pretended_gpu import CUDA, pretended_gpu
from tests.parts.saved_models import CPU, save
from tests.parts.tiny import gpt2, llama
from tests.parts.trainers import PROMPTS, Places, numbers_of, settings

SOME = [
    ("gpt2", {"use_share_model": False, "top_k": 20, "use_amp": True, "amp_dtype": "bf16", "kl_in": "loss"}),
    ("gpt2", {"use_share_model": True, "use_amp": True, "amp_dtype": "fp16"}),
    ("llama", {"advantage_estimator": "grpo", "top_p": 0.9, "kl_in": "loss"}),
    ("llama", {"advantage_estimator": "reinforce_pp", "top_k": 20}),
    ("llama", {"use_share_model": False, "use_lora": True, "lora_r": 2}),
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    models = {"gpt2": gpt2(n_layer=1, n_embd=16), "llama": llama(num_hidden_layers=1)}
    return {name: save(root / name, model) for name, model in models.items()}


def load(path, size, **keys):
    """The settings of an iteration that is one step of 8 responses in microbatches of `size`, and its models, on the CPU."""
    small = {"rollout_batch_size": 8, "num_mini_batch": 1, "ppo_epoch": 1, "max_new_tokens": 4, "lr": 1e-4}
    config = settings(model_path=path, per_device_microbatch_size=size, **small, **keys)
    models = load_models(config, CPU)
    models.policy.lm.generation_config.eos_token_id = list(range(160, 240))
    return config, models


def build(config, models, device):
    """A trainer as PPOAgent builds it."""
    moved = [model and model.to(device) for model in (models.policy, models.critic, models.ref_policy)]
    torch.manual_seed(1)
    models = Models(*moved, models.tokenizer)
    return PPOTrainer(config, models, PROMPTS, Places(), VecInfo(), World(device=device))


def counted(gpu, function, into):
    """`function`, which adds to the counter `into` how often it makes the host wait."""

    def counting(*args, **options):
        before = Counter(gpu.waits)
        result = function(*args, **options)
        into.update(gpu.waits - before)
        return result

    return counting


def iteration(gpu, config, models):
    """The waits, by line, of an iteration's update, and of its critic and reference; its metrics; and all its waits."""
    parts = {name: Counter() for name in ("update", "reference")}
    trainer = build(config, models, CUDA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PPOUpdate, "__call__", counted(gpu, PPOUpdate.__call__, parts["update"]))
        patch.setattr(
            rollout_module, "predict_columns", counted(gpu, rollout_module.predict_columns, parts["reference"])
        )
        gpu.reset()
        return parts, trainer.step(), gpu.num_waits


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "keys"), SOME)
def test_a_microbatch_waits_for_nothing(paths, kind, keys):
    """Nor does an operation mix devices, which would raise."""
    loaded = [load(paths[kind], size, **keys) for size in (4, 2)]
    with pretended_gpu() as gpu:
        (few, metrics, waits), (many, _, _) = (iteration(gpu, *some) for some in loaded)
    assert few["update"]  # it reads its statistics
    for name in few:
        assert not many[name] - few[name]
    # the first iteration in 16 bits: the library waits in each row that measures the noise, which is computed alone twice
    assert 0 < waits <= 30 + 2 * 8
    if "use_amp" not in keys:
        expected = build(*load(paths[kind], 4, **keys), CPU).step()
        assert numbers_of(metrics) == pytest.approx(numbers_of(expected), rel=1e-3, abs=1e-5)


class Asks:
    """A user who asks twice, and pays for the first answer."""

    def reset(self, seed=None):
        self.num_heard = 0
        return "a ?", {}

    def step(self, reply):
        self.num_heard += 1
        return "b ?", float(self.num_heard == 1), self.num_heard == 2, False, {}


def test_a_dialogue_of_several_turns(paths):
    """It has no tensor on the wrong device, and its rollout is that of the CPU."""
    config, models = load(paths["gpt2"], 4, top_k=20)
    trainer = build(config, models, CPU)
    expected = collect_rollout(EpisodeInputs([Asks() for _ in range(4)]), trainer.speaker, trainer.scorer, models)
    assert len(expected.dialogues[0].turns) > 1
    with pretended_gpu() as gpu:
        trainer = build(config, models, CUDA)
        gpu.reset()
        found = collect_rollout(
            EpisodeInputs([Asks() for _ in range(4)]), trainer.speaker, trainer.scorer, trainer.models
        )
        assert gpu.num_waits <= 20
        assert found.dialogues == expected.dialogues
        for name in ("turn_rewards", "logprobs", "ref_logprobs", "values"):
            torch.testing.assert_close(getattr(found, name).cpu(), getattr(expected, name))
        for name in ("response_ids", "response_mask", "support"):
            assert torch.equal(getattr(found.tokens, name).cpu(), getattr(expected.tokens, name))
    assert expected.turn_rewards.any()
