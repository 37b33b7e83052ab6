"""Whole iterations on a pretended GPU: no tensor is on the wrong device, and the host rarely waits.

A microbatch's waits and launches are those of an iteration with twice as many microbatches, less those of one with half of them.
"""

from collections import Counter

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

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
from tests.parts.tiny import byte_tokenizer, gpt2, llama, packed
from tests.parts.trainers import PROMPTS, Places, numbers_of, settings

AT_MOST = 0  # waits for one microbatch of the update, or of critic and reference
ESTIMATORS = {
    "shared": {"use_share_model": True},
    "separate": {"use_share_model": False},
    **{name: {"advantage_estimator": name} for name in ("grpo", "rloo", "reinforce_pp")},
}
FILTERS = {"all": {}, "top_k": {"top_k": 20}, "top_p": {"top_p": 0.9}}
PRECISIONS = {
    "fp32": {},
    "bf16": {"use_amp": True, "amp_dtype": "bf16"},
    "fp16": {"use_amp": True, "amp_dtype": "fp16"},
    "lora": {"use_lora": True, "lora_r": 2},
}
KL = {"reward": {}, "loss": {"kl_in": "loss"}}
SOME = [
    *(("gpt2", "shared", "all", "fp32", "reward"), ("gpt2", "separate", "top_k", "bf16", "loss")),
    *(("llama", "grpo", "top_p", "fp32", "loss"), ("llama", "separate", "all", "lora", "reward")),
    *(("qwen2", "rloo", "all", "bf16", "reward"), ("qwen2", "shared", "top_p", "lora", "loss")),
    *(("mistral", "reinforce_pp", "top_k", "fp32", "reward"), ("gpt2", "shared", "all", "fp16", "reward")),
    ("gpt2", "grpo", "top_p", "fp16", "loss"),
]


def qwen2():
    torch.manual_seed(0)
    return packed(Qwen2ForCausalLM(Qwen2Config(**like_llama())))


def mistral():
    torch.manual_seed(0)
    return packed(MistralForCausalLM(MistralConfig(**like_llama(), sliding_window=6)))


def like_llama():
    words = byte_tokenizer()
    ids = {"vocab_size": len(words) + 5, "eos_token_id": words.eos_token_id, "bos_token_id": None}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 256}
    return {**ids, **sizes, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    models = {
        "gpt2": gpt2(n_layer=1, n_embd=16),
        "llama": llama(num_hidden_layers=1),
        "qwen2": qwen2(),
        "mistral": mistral(),
    }
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
    """`function`, which adds to the counters `into` (waits, launches) what it makes the host and the device do."""

    def counting(*args, **options):
        before = Counter(gpu.waits), gpu.num_launches
        result = function(*args, **options)
        into["waits"] += gpu.waits - before[0]
        into["launches"] += gpu.num_launches - before[1]
        return result

    return counting


def iteration(gpu, config, models):
    """What an iteration's update, and its critic and reference, cost: waits by line, and launches; and its metrics."""
    parts = {name: {"waits": Counter(), "launches": 0} for name in ("update", "reference")}
    trainer = build(config, models, CUDA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PPOUpdate, "__call__", counted(gpu, PPOUpdate.__call__, parts["update"]))
        patch.setattr(
            rollout_module, "predict_columns", counted(gpu, rollout_module.predict_columns, parts["reference"])
        )
        gpu.reset()
        return parts, trainer.step(), gpu.num_waits


def check(path, **keys):
    """The waits of a microbatch, and of a whole iteration; no mixed devices, which would raise."""
    loaded = [load(path, size, **keys) for size in (4, 2)]
    with pretended_gpu() as gpu:
        (few, metrics, waits), (many, _, _) = (iteration(gpu, *some) for some in loaded)
    for name, microbatches in (("update", 2), ("reference", 2)):
        more = many[name]["waits"] - few[name]["waits"]
        assert more.total() / microbatches <= AT_MOST, (name, more)
        assert many[name]["launches"] > few[name]["launches"] > 0
    # the first iteration in 16 bits: the library waits in each row that measures the noise, which is computed alone twice
    assert 0 < waits <= 30 + 2 * 8
    return metrics


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "estimator", "filters", "precision", "kl"), SOME)
def test_a_microbatch_waits_for_nothing(paths, kind, estimator, filters, precision, kl):
    keys = ESTIMATORS[estimator] | FILTERS[filters] | PRECISIONS[precision] | KL[kl]
    metrics = check(paths[kind], **keys)
    if precision in ("fp32", "lora"):
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
