"""TRL's PPO on workload W-synthetic, as the peer of scripts/benchmark.py (--vs); prints JSON with tokens_per_s.

pip install --no-deps --target trl112 trl==1.12.0        (the last TRL that has PPO; it runs with the installed transformers)
python -m benchmarks.trl --trl trl112 --size small

Policy, reference, prompts, classifier, optimizer steps and the number of tokens are those of ours. The critic is a separate
model, the reward is the classifier alone, and all responses of an iteration are generated and scored at once.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import (
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    TrainerCallback,
)

from benchmarks import machine, workload
from rlhf_dialog.commands.command_line import exit_code
from rlhf_dialog.errors import UserError


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--trl", type=Path, required=True, metavar="FOLDER", help="folder that holds TRL 1.12, see above")
    add("--size", default="small", choices=tuple(workload.SIZES), help="default: small")
    add_sizes(parser, device="cuda", max_new_tokens=20, epochs=5)
    return parser.parse_args(argv)


def add_sizes(parser: argparse.ArgumentParser, device: str, max_new_tokens: int, epochs: int) -> None:
    """The options of every peer, with the defaults of its workload."""
    add = parser.add_argument
    add("--dtype", default="fp32", choices=("fp32", "bf16"), help="bf16: autocast (default: fp32)")
    add("--device", default=device, choices=("cpu", "cuda"), help=f"default: {device}")
    add("--iterations", type=int, default=4, help="the first is a warm-up and is not counted (default: 4)")
    add("--rollout_batch_size", type=int, default=64, help="responses per iteration (default: 64)")
    add("--max_new_tokens", type=int, default=max_new_tokens, help=f"tokens per response (default: {max_new_tokens})")
    add("--minibatch", type=int, default=16, help="responses per optimizer step (default: 16)")
    add("--epochs", type=int, default=epochs, help=f"passes over each rollout (default: {epochs})")


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = parse(argv)
    with exit_code(debug=False) as ending:
        run(options)
    return ending.code


def run(options: argparse.Namespace) -> None:
    """Train with TRL and print the speed. Raises UserError when the folder holds no TRL with PPO."""
    ppo, laps = import_ppo(options.trl), Laps()
    with tempfile.TemporaryDirectory(prefix="rlhf_dialog_trl_") as folder:
        trainer = build(ppo, options, Path(folder), laps)
        trainer.train()
    seconds = laps.seconds()
    tokens = options.rollout_batch_size * options.max_new_tokens
    memory = torch.cuda.max_memory_allocated() / 2**30 if options.device == "cuda" else None
    found = {"tokens_per_s": tokens * len(seconds) / sum(seconds), "seconds": seconds, "cuda_gib": memory}
    print(json.dumps({**found, "peak_gib": machine.peak_gib()}))


def import_ppo(folder: Path) -> Any:
    """The module `trl.experimental.ppo` of the TRL in `folder`."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    sys.path.insert(0, str(folder.resolve()))
    try:
        return importlib.import_module("trl.experimental.ppo")
    except ImportError as error:
        command = f"pip install --no-deps --target {folder} trl==1.12.0"
        raise UserError(f"--trl {folder}: holds no TRL with PPO ({error}); make it with `{command}`") from error


class Laps(TrainerCallback):
    """The time at the beginning of the training and at the end of each iteration."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin."""
        self.times.append(time.perf_counter())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """An iteration has ended, on the GPU too."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Of each iteration after the first."""
        return [after - before for before, after in zip(self.times[1:], self.times[2:], strict=False)]


class Judge(nn.Module):
    """W's classifier in the shape that TRL wants of a reward model: a backbone with hidden states, and `score`.

    The score is the probability of the first class for prompt and response, on every position (B, P + T, 1).
    """

    base_model_prefix = "backbone"

    def __init__(self, size: str, policy: PreTrainedTokenizerFast, judge: PreTrainedTokenizerFast):
        super().__init__()
        self.model, self.texts_of, self.tokenizer = workload.classifier(size), policy.batch_decode, judge
        self.score = nn.Identity()
        self.backbone = self.scored

    @torch.no_grad()
    def scored(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SimpleNamespace:
        """The scores, under the name of hidden states."""
        rows = [ids[mask.bool()] for ids, mask in zip(input_ids, attention_mask, strict=True)]
        encoded = self.tokenizer(
            self.texts_of(rows),
            padding=True,
            return_tensors="pt",
            truncation=True,
            max_length=workload.MAX_CLASSIFIED,
            padding_side="right",
        )
        chances = self.model(**encoded.to(input_ids.device)).logits.float().softmax(-1)[:, 0]
        return SimpleNamespace(hidden_states=(chances[:, None, None].expand(-1, input_ids.shape[1], 1),))


def build(ppo: Any, options: argparse.Namespace, folder: Path, laps: Laps) -> Any:
    """TRL's trainer for W: as many optimizer steps in an iteration as ours."""
    size = workload.SIZES[options.size]
    inputs = workload.read_inputs(size, None)
    config: Any = workload.policy_config(size, "gpt2")
    torch.manual_seed(0)
    policy = GPT2LMHeadModel(config)
    reference = GPT2LMHeadModel(config)
    reference.load_state_dict(policy.state_dict())
    value_config: Any = workload.policy_config(size, "gpt2")
    value_config.num_labels = 1
    prompts = Dataset.from_dict({"input_ids": inputs.expected_ids()})
    return ppo.PPOTrainer(
        args=ppo.PPOConfig(output_dir=str(folder), **arguments(options)),
        processing_class=inputs.tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=Judge(size.classifier, inputs.tokenizer, inputs.classifier_tokenizer),
        value_model=GPT2ForSequenceClassification(value_config),
        train_dataset=prompts,
        eval_dataset=prompts.select(range(16)),
        callbacks=[laps],
    )


def arguments(options: argparse.Namespace) -> dict[str, Any]:
    """W's numbers under TRL's names."""
    rows = options.rollout_batch_size
    return {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": 1,
        "num_mini_batches": rows // options.minibatch,
        "num_ppo_epochs": options.epochs,
        "total_episodes": rows * options.iterations,
        "response_length": options.max_new_tokens,
        "temperature": 1.0,
        "local_rollout_forward_batch_size": rows,
        "learning_rate": 1e-6,
        "kl_coef": 0.05,
        "whiten_rewards": False,
        "num_sample_generations": 0,
        **usual(options),
    }


def usual(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of every peer: nothing is saved, logged or shown."""
    return {
        "bf16": options.dtype == "bf16",
        "use_cpu": options.device == "cpu",
        "gradient_checkpointing": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": 0,
        "dataloader_pin_memory": False,
    }


if __name__ == "__main__":
    sys.exit(main())
