"""The forecast against the bytes that are alive on a pretended GPU, in each phase of a run's second iteration."""

from contextlib import contextmanager

import pytest
import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.memory.forecast import forecast, read_sizes
from rlhf_dialog.distributed.memory.setting import memory_setting
from rlhf_dialog.distributed.world import World
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models import loading
from rlhf_dialog.models.generation import StopRule
from rlhf_dialog.models.loading import load_models
from rlhf_dialog.rewards.length import LengthMatch
from rlhf_dialog.training.clock import Clock
from rlhf_dialog.training.trainer import PPOTrainer
from tests.parts.pretended_gpu import CUDA, pretended_gpu
from tests.parts.saved_models import save
from tests.parts.tiny import gpt2, llama
from tests.parts.yaml_files import settings

PHASES = {
    "generation": "rollout",
    "reference": "scoring",
    "forward": "update",
    "backward": "update",
    "optimizer": "optimizer step",
}
SMALL = {
    "rollout_batch_size": 16,
    "num_mini_batch": 2,
    "ppo_epoch": 1,
    "max_new_tokens": 12,
    "max_prompt_length": 40,
    "per_device_microbatch_size": 16,
}
GPT2 = {"n_embd": 128, "n_layer": 3, "n_head": 4, "vocab_size": 2000}
LLAMA = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2000,
}
MODELS = {
    "gpt2": lambda: gpt2(**GPT2),
    "llama": lambda: llama(**LLAMA).bfloat16(),
    "tied": lambda: llama(**LLAMA, tie_word_embeddings=True).bfloat16(),
}
SHARED, LORA, SEVERAL = {"use_share_model": True}, {"use_lora": True}, {"num_responses_per_prompt": 4}
CASES = [
    ("gpt2", {**SEVERAL, "top_p": 0.9, "per_device_microbatch_size": 8}),
    ("gpt2", SHARED),
    ("gpt2", {**SHARED, "per_device_microbatch_size": 4, "activation_checkpointing": True}),
    ("gpt2", {**SEVERAL, "precision": "fp32"}),
    ("llama", {**SHARED, **LORA}),
    ("llama", {**SHARED, **LORA, **SEVERAL, "top_p": 0.9}),
    ("llama", {"per_device_microbatch_size": 4}),
    ("tied", {**LORA, "activation_checkpointing": True}),
    ("tied", {**LORA, **SEVERAL, "advantage_estimator": "grpo"}),
]


def live_bytes(config, gpu):
    """The most bytes that are alive in each phase of the second iteration; the first one makes the optimizer's state."""
    prompts = [Dialogue(["x" * 500], reference="y" * 20, meta={"index": i}) for i in range(16)]
    trainer = PPOTrainer(config, load_models(config, CUDA), prompts, LengthMatch(), VecInfo(), World(device=CUDA))
    trainer.step()
    peaks = dict.fromkeys(PHASES.values(), 0)
    measure = Clock.measure

    @contextmanager
    def watched(self, name):
        gpu.memory.reset_peak()
        with measure(self, name):
            yield
        if name in PHASES:
            peaks[PHASES[name]] = max(peaks[PHASES[name]], gpu.memory.peak)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Clock, "measure", watched)
        trainer.step()
    return peaks


def compare(path, **keys):
    """The forecast of a run, and the live bytes of each phase; every prompt and response is as long as it may be."""
    config = settings(model_path=path, **{**SMALL, **keys})
    told = forecast(*read_sizes(config), memory_setting(config, on_cuda=True))
    with pretended_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopRule, "find_ends", lambda self, ids: torch.zeros(len(ids), dtype=torch.bool))
        patch.setattr(loading, "num_token_ids", lambda lm, tokenizer: None)  # as if every id of the model were a token
        return told, live_bytes(config, gpu)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "keys"), CASES)
def test_the_forecast_is_near_the_live_bytes_of_every_phase(tmp_path, model, keys):
    told, peaks = compare(save(tmp_path / model, MODELS[model]()), **keys)
    shares = {phase: told.bytes_in(phase) / count for phase, count in peaks.items()}
    assert all(0.8 < share < 1.25 for share in shares.values()), (shares, told.table())
