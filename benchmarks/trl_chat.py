"""TRL's RLOOTrainer or GRPOTrainer on workload R, as the peer of scripts/benchmark.py (--vs); prints JSON with tokens_per_s.

python scripts/benchmark.py --workload R --vs 'python -m benchmarks.trl_chat --method grpo' --pairs 3

The TRL that is installed for supervised training. Model, adapters, prompts, number and length of responses, minibatches, passes,
sampling and reward are those of ours, in float32, without gradient checkpointing, with transformers' own `generate`, and beta is
above 0, so that it computes the reference too.
"""

import argparse
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import chat_workload, machine
from benchmarks.trl import Laps, add_sizes, usual
from rlhf_dialog.commands.command_line import exit_code
from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.data.prompts import PromptRules

METHODS = ("grpo", "rloo")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--method", default="grpo", choices=METHODS, help="default: grpo")
    add("--size", default="135m", choices=tuple(chat_workload.SIZES), help="of R-synthetic (default: 135m)")
    add("--model", type=Path, metavar="FOLDER", help="the fetched smollm2; default: random weights (R-synthetic)")
    add("--prompts", type=Path, metavar="FOLDER", help="the fetched chitchat; default: made-up prompts (R-synthetic)")
    add_sizes(parser, device="cpu", max_new_tokens=32, epochs=1)
    parser.set_defaults(set=[])  # of the keys of docs/CONFIG.md
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = parse(argv)
    with exit_code(debug=False) as ending:
        run(options)
    return ending.code


class Counted:
    """The constant reward; counts the tokens of the responses that it is given."""

    __name__ = "constant"

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def __call__(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        self.tokens.append(sum(map(len, completion_ids)))
        return [0.0] * len(completion_ids)


def run(options: argparse.Namespace) -> None:
    """Train with TRL and print the speed."""
    laps, reward = Laps(), Counted()
    with tempfile.TemporaryDirectory(prefix="rlhf_dialog_trl_") as name:
        folder = Path(name)
        config = chat_workload.run_config(options, folder)
        if config.pytorch_threads:
            torch.set_num_threads(config.pytorch_threads)
        chat_workload.write_files(options, folder)
        trainer = build(options, config, folder, laps, reward)
        trainer.train()
    steps = len(laps.times) - 1
    per_iteration = steps // options.iterations  # optimizer steps
    ends = laps.times[::per_iteration]
    seconds = [after - before for before, after in itertools.pairwise(ends[1:])]
    tokens = reward.tokens[1 : len(seconds) + 1]
    found = {"tokens_per_s": sum(tokens) / sum(seconds), "seconds": seconds, "tokens": tokens}
    print(json.dumps({**found, "method": options.method, "peak_gib": machine.peak_gib()}))


def build(options: argparse.Namespace, config: Any, folder: Path, laps: Laps, reward: Counted) -> Any:
    """TRL's trainer for R: as many responses, optimizer steps and passes in an iteration as ours."""
    import trl

    tokenizer = AutoTokenizer.from_pretrained(config.model_path)
    lm = AutoModelForCausalLM.from_pretrained(config.model_path, dtype=torch.float32)
    rules = PromptRules(config.context_size, config.min_context_size)
    dialogues = rules.load(config.env.args.data_path, "train")
    encoder = prompt_encoder(tokenizer, config.turn_separator, config.max_prompt_length, config.system_prompt)
    texts = [tokenizer.decode(encoder.encode_prompt(dialogue.prompt_turns)) for dialogue in dialogues]
    kinds: dict[str, Any] = {"grpo": (trl.GRPOTrainer, trl.GRPOConfig), "rloo": (trl.RLOOTrainer, trl.RLOOConfig)}
    trainer_class, config_class = kinds[options.method]
    return trainer_class(
        model=lm,
        reward_funcs=reward,
        args=config_class(output_dir=str(folder), **arguments(options)),
        train_dataset=Dataset.from_dict({"prompt": texts}),
        processing_class=tokenizer,
        callbacks=[laps],
        peft_config=LoraConfig(r=config.lora_r, lora_alpha=config.lora_alpha, target_modules="all-linear"),
    )


def arguments(options: argparse.Namespace) -> dict[str, Any]:
    """R's numbers under TRL's names."""
    per_iteration = options.rollout_batch_size // options.minibatch
    return {
        "per_device_train_batch_size": options.minibatch,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": per_iteration,
        "num_iterations": options.epochs,
        "num_generations": chat_workload.RESPONSES,
        "max_steps": options.iterations * per_iteration * options.epochs,
        "max_completion_length": options.max_new_tokens,
        "temperature": 1.0,
        "beta": 0.05,
        "learning_rate": 1e-6,
        **usual(options),
    }


if __name__ == "__main__":
    sys.exit(main())
