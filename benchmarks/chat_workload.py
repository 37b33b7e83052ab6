"""Workload R of scripts/benchmark.py: the work of a user who tunes a small chat model on a laptop.

A model of SmolLM2-135M's shape in float32, LoRA of rank 16 on all linear layers, RLOO with four responses to each of 16 prompts,
context of three turns, at most 32 new tokens at temperature 1, one pass in four minibatches, a constant reward. `--model` and
`--prompts` are the folders that `experiments.smollm2 fetch` writes. Without them weights and prompts are made up here:
R-synthetic, of the same shape and lengths; its responses have all 32 tokens.
"""

import json
import random
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.workload import made_up_tokenizer, single_words
from rlhf_dialog.config.loading import load_settings
from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import BaseReward

RESPONSES = 4
SIZES: dict[str, dict[str, Any]] = {
    "135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
    },
    "test": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 512,
        "max_position_embeddings": 512,
    },
}
# Every 20th part of the lengths of chit-chat's prompts in tokens, with SmolLM2's tokenizer, template and system prompt.
LENGTHS = "31 53 61 65 69 73 76 80 83 87 91 95 100 105 110 117 123 134 147 173 256"
NUM_PROMPTS, TEMPLATE_TOKENS = 512, 12  # of the made-up prompts; tokens of the made-up template
TEMPLATE = (
    "{% for m in messages %}<x0>{{ m['role'] }} {{ m['content'] }}<EOU>{% endfor %}"
    "{% if add_generation_prompt %}<x0>{% endif %}"
)


@RewardFactory.register("BenchmarkConstant")
class BenchmarkConstant(BaseReward):
    """The same for every response: what is measured is the work of the language model."""

    name = "constant"

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """0 for each dialogue."""
        return [0.0] * len(dialogues)


def write_files(options: Namespace, folder: Path) -> None:
    """R-synthetic's model with its tokenizer, and its prompts; nothing where these are given."""
    if options.model is not None:
        return
    shape = SIZES[options.size]
    tokenizer = made_up_tokenizer(shape["vocab_size"])
    tokenizer.chat_template = TEMPLATE
    tokenizer.eos_token = "<EOU>"
    torch.manual_seed(0)
    shape = shape | {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "tie_word_embeddings": True}
    lm = LlamaForCausalLM(LlamaConfig(**shape))
    lm.save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    words, rng = single_words(tokenizer)[1], random.Random(3)
    rows = [{"prompt": [" ".join(rng.choices(words, k=length))], "reference": "a"} for length in prompt_lengths()]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def prompt_lengths() -> list[int]:
    """The number of words of each made-up prompt, so that its tokens have the distribution of R's, shuffled."""
    quantiles = [int(word) for word in LENGTHS.split()]
    places = [(i + 0.5) / NUM_PROMPTS * (len(quantiles) - 1) for i in range(NUM_PROMPTS)]
    lower = [min(int(place), len(quantiles) - 2) for place in places]
    lengths = [
        quantiles[i] + (place - i) * (quantiles[i + 1] - quantiles[i]) for i, place in zip(lower, places, strict=True)
    ]
    words = [max(1, round(length) - TEMPLATE_TOKENS) for length in lengths]
    random.Random(1).shuffle(words)
    return words


def run_config(options: Namespace, folder: Path) -> Config:
    """The configuration of the run: the numbers of R, then `--set`, and defaults for the rest. Raises UserError."""
    if (options.model is None) != (options.prompts is None):
        raise UserError(
            "--model and --prompts: give both (`python -m experiments.smollm2 fetch smollm2 chitchat` writes them), or neither"
        )
    keys: dict[str, Any] = {
        "model_path": str(options.model or folder / "policy"),
        "env.args.data_path": str(options.prompts or folder / "prompts.jsonl"),
        "reward_class": {"id": "BenchmarkConstant"},
        "run_dir": str(folder),
        "experiment_name": "run",
        "device": options.device,
        "turn_separator": "chat_template",
        "context_size": 3,
        "max_prompt_length": 256,
        "max_new_tokens": options.max_new_tokens,
        "advantage_estimator": "rloo",
        "num_responses_per_prompt": RESPONSES,
        "rollout_batch_size": options.rollout_batch_size,
        "num_mini_batch": options.rollout_batch_size // options.minibatch,
        "ppo_epoch": options.epochs,
        "per_device_microbatch_size": 16,
        "use_lora": True,
        "lora_r": 16,
        "lora_alpha": 32,
        "lr": 1e-6,
        "kl_coef": 0.05,
        "entropy_coef": 0.0,
        "temperature": 1.0,
        "precision": options.dtype,
        "max_iterations": options.iterations,
        "sample_interval": 0,
        "seed": 0,
    }
    return load_settings(Config, None, keys | dict(options.set))
