"""Measure the speed of training: the real trainer, with all its checks and its logging, on workload W or R.

W: PPO with a critic on a GPT-2 of random weights, with a classifier in the reward. R: RLOO with LoRA on a small chat model.

python scripts/benchmark.py --workload W --size small --w_data DIR --json speed.json
python scripts/benchmark.py --workload R --model fetched/smollm2 --prompts fetched/chitchat
python scripts/benchmark.py --size small --w_data DIR --vs 'cd DIR && python trl_ppo.py --size small' --pairs 5

The result is tokens_per_s: generated tokens per second of whole iterations (rollout, reward, update, logging), without the
first iteration, loading and saving. Machines are noisy, so do not compare seconds: compare with --vs, which alternates with
a peer, or with --compare, which divides by the speed of a matrix product measured in the same call.
"""

import argparse
from pathlib import Path
from typing import Any

import yaml

ARCHITECTURES = ("gpt2", "llama", "qwen2")
SIZES = ("small", "base", "1m", "14m", "30m", "test", "135m")
DEFAULTS: dict[str, dict[str, Any]] = {
    "W": {"size": "small", "max_new_tokens": 20, "epochs": 5},
    "R": {"size": "135m", "max_new_tokens": 32, "epochs": 1},
}


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--workload", default="W", choices=("W", "R"), help="default: W")
    add("--size", choices=SIZES, help="W: small 5.5M (default), base 124M; R: 135m")
    add("--model", type=Path, metavar="FOLDER", help="R: the fetched smollm2; default: random weights (R-synthetic)")
    add(
        "--prompts", type=Path, metavar="FOLDER", help="R: the fetched chitchat; default: made-up prompts (R-synthetic)"
    )
    add("--architecture", default="gpt2", choices=ARCHITECTURES, help="default: gpt2")
    add(
        "--w_data",
        type=Path,
        help="folder written by W's prepare.py; default: synthetic prompts of the same lengths (W-synthetic)",
    )
    add("--critic", default="shared", choices=("shared", "separate"), help="default: shared, one trunk")
    add("--dtype", default="fp32", choices=("fp32", "bf16"), help="bf16: autocast (default: fp32)")
    add(
        "--classifier_dtype",
        default="auto",
        choices=("auto", "fp32", "bf16"),
        help="auto: bf16 if the processor supports it",
    )
    add(
        "--iterations",
        type=int,
        default=4,
        help="number of iterations; the first is a warm-up and is not counted (default: 4)",
    )
    add("--rollout_batch_size", type=int, default=64, help="responses per iteration (default: 64)")
    add("--max_new_tokens", type=int, help="tokens per response (default: 20, R 32)")
    add("--minibatch", type=int, default=16, help="responses per optimizer step (default: 16)")
    add("--epochs", type=int, help="passes over each rollout (default: 5, R 1)")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"), help="auto: cuda if available, else cpu")
    add(
        "--set",
        action="append",
        default=[],
        type=setting,
        metavar="KEY=VALUE",
        help="set any other key of docs/CONFIG.md",
    )
    add("--json", type=Path, help="file to write all measurements to")
    add(
        "--profile",
        type=Path,
        metavar="FOLDER",
        help="profile one more iteration; writes profile.txt and trace.json.gz",
    )
    add("--vs", metavar="CMD", help="shell command of a peer, run alternately with ours; it must print `SUMMARY {json}` with "
        "tok_s, or JSON with tokens_per_s")  # fmt: skip
    add("--pairs", type=int, default=5, help="number of pairs of runs with --vs (default: 5)")
    add(
        "--compare",
        type=Path,
        metavar="JSON",
        help="earlier --json file of the same workload; shows every phase as a ratio to it",
    )
    add("--debug", action="store_true", help="show the traceback of an error")
    options = parser.parse_args(argv)
    for name, value in DEFAULTS[options.workload].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def setting(text: str) -> tuple[str, Any]:
    """`key=value`, the value as YAML."""
    key, found, value = text.partition("=")
    if not found or not key:
        raise argparse.ArgumentTypeError(f"found '{text}', wanted KEY=VALUE, for example lr=1e-5")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise argparse.ArgumentTypeError(f"the value of '{text}' is not valid YAML") from error
