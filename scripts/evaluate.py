"""Measure one agent, or two on the same prompts, on a held-out split:

python scripts/evaluate.py --agent runs/quickstart/agent --baseline runs/quickstart_sft --output evaluation.json

Data and reward are those of the run that the agent came from (config.yaml beside agent/), or of --config.
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import rlhf_dialog.rewards  # noqa: F401  the built-in rewards register themselves
from rlhf_dialog import evaluate
from rlhf_dialog.chat import ChatAgent
from rlhf_dialog.checkpoint import replace_json
from rlhf_dialog.cli import exit_code_of, set_up_logging
from rlhf_dialog.config import find_config, load_config
from rlhf_dialog.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.generation import Sampling
from rlhf_dialog.prompts import load_prompts
from rlhf_dialog.rewards.composite import build_reward
from rlhf_dialog.schema import Config

logger = logging.getLogger("rlhf_dialog.evaluate")
SHOWN = ("score", "intent_accuracy", "meteor", "mean_words", "mean_length", "truncated", "distinct_1", "distinct_2")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", required=True, help="folder of the agent (any causal LM folder is one)")
    parser.add_argument(
        "--baseline", help="a second agent, measured on the same prompts: the `before` of the comparison"
    )
    parser.add_argument("--output", required=True, type=Path, help="JSON file to write")
    parser.add_argument("--samples", type=Path, help="JSON file for the replies of three prompts")
    parser.add_argument("--config", help="YAML with data and reward; default: config.yaml of the agent's run")
    parser.add_argument("--split", default="test", choices=("train", "validation", "test"), help="default: test")
    parser.add_argument("--max_prompts", type=int, help="at most so many prompts, drawn by --seed; default: all")
    parser.add_argument("--min_context_size", type=int, help="default: the configuration's")
    parser.add_argument("--batch_size", type=int, default=64, help="prompts answered together (default: 64)")
    parser.add_argument("--seed", type=int, default=0, help="seed of sampling and resampling (default: 0)")
    parser.add_argument("--temperature", type=float, help="default: the agent's own sampling")
    parser.add_argument("--top_k", type=int, help="default: the agent's own sampling")
    parser.add_argument("--top_p", type=float, help="default: the agent's own sampling")
    parser.add_argument("--min_new_tokens", type=int, default=0, help="default: 0")
    parser.add_argument("--greedy", action="store_true", help="the most likely token instead of sampling")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    set_up_logging()
    return exit_code_of(lambda: run(options), options.debug)


def check(options: argparse.Namespace) -> None:
    """Raises UserError for options that cannot work."""
    for name in ("batch_size", "max_prompts", "min_context_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name}: found {value}, wanted at least 1")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"--device {options.device}: torch finds no CUDA device here; leave it out")


def run(options: argparse.Namespace) -> None:
    check(options)
    config = read_config(options)
    reward = build_reward(config.reward_class.id, config.reward_class.args).to(options.device)
    prompts = held_out_prompts(config, options)
    agent = ChatAgent.load(options.agent, device=options.device)
    sampling = sampling_of(agent, options)
    systems = {"after" if options.baseline else "metrics": agent}
    if options.baseline:
        systems["before"] = ChatAgent.load(options.baseline, device=options.device)
    replies = {
        name: evaluate.generate_replies(system, prompts, sampling, options.seed, options.batch_size, name)
        for name, system in systems.items()
    }
    measured = {name: evaluate.measure(found, reward) for name, found in replies.items()}
    train = load_prompts(config.env.args.data_path, "train", config.context_size, config.min_context_size)
    others = evaluate.baseline_replies(prompts, [p.reference or "" for p in train], agent, options.seed)
    result: dict[str, Any] = {name: evaluate.intervals(numbers, options.seed) for name, numbers in measured.items()}
    if options.baseline:
        result["difference"] = evaluate.differences(measured["before"], measured["after"], options.seed)
    result["baselines"] = {
        name: evaluate.intervals(evaluate.measure(found, reward), options.seed) for name, found in others.items()
    }
    result["settings"] = settings_of(options, config, sampling, reward, len(prompts))
    replace_json(options.output, result)
    if options.samples:
        replace_json(options.samples, samples_of(prompts, replies))
    Console(width=None if sys.stdout.isatty() else 150).print(table_of(result))
    logger.info("written: %s", options.output)


def read_config(options: argparse.Namespace) -> Config:
    if options.config:
        return load_config(find_config(options.config))
    path = Path(options.agent).parent / "config.yaml"
    if not path.is_file():
        raise UserError(f"--agent {options.agent}: no run's config.yaml beside it; name data and reward with --config")
    return load_config(path)


def held_out_prompts(config: Config, options: argparse.Namespace) -> list[Dialogue]:
    least = options.min_context_size or config.min_context_size
    prompts = load_prompts(config.env.args.data_path, options.split, config.context_size, least)
    return evaluate.pick_prompts(prompts, options.max_prompts, options.seed)


def sampling_of(agent: ChatAgent, options: argparse.Namespace) -> Sampling:
    """The agent's own sampling where no option says otherwise; both agents of a comparison get the same."""
    own = agent.sampling
    given = {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
    filters = {name: getattr(own, name) if value is None else value for name, value in given.items()}
    if filters["temperature"] <= 0 or filters["top_k"] < 0 or not 0 < filters["top_p"] <= 1:
        raise UserError(f"{filters}: temperature must be above 0, top_k at least 0, top_p above 0 and at most 1")
    return Sampling(own.max_new_tokens, **filters, min_new_tokens=options.min_new_tokens, greedy=options.greedy)


def settings_of(
    options: argparse.Namespace, config: Config, sampling: Sampling, reward: Any, num_prompts: int
) -> dict[str, Any]:
    return {
        "agent": str(options.agent),
        "baseline": options.baseline,
        "data_path": config.env.args.data_path,
        "split": options.split,
        "num_prompts": num_prompts,
        "min_context_size": options.min_context_size or config.min_context_size,
        "sampling": vars(sampling),
        "seed": options.seed,
        "batch_size": options.batch_size,
        "reward_class": config.reward_class.model_dump(),
        "reward_parts": list(getattr(reward, "parts", {reward.name: None})),
        "distinct_block": evaluate.BLOCK,
        "torch": torch.__version__,
    }


def samples_of(prompts: list[Dialogue], replies: dict[str, evaluate.Replies]) -> list[dict[str, str]]:
    """Three prompts, evenly spread, with what each system answered."""
    chosen = [len(prompts) * k // 4 for k in (1, 2, 3)]
    return [
        {
            "last_turn": prompts[i].prompt_turns[-1],
            "reference": prompts[i].reference or "",
            **{name: found.dialogues[i].response for name, found in replies.items()},
        }
        for i in chosen
    ]


def table_of(result: dict[str, Any]) -> Table:
    """Every system a row: mean and, for the agents, the 95 % interval."""
    shown = [name for name in SHOWN if name in next(iter(result["baselines"].values()))]
    table = Table(title="mean [95 % interval]", title_justify="left")
    table.add_column("system")
    for name in shown:
        table.add_column(name, justify="right")
    rows = {name: result[name] for name in ("metrics", "before", "after", "difference") if name in result}
    for name, metrics in rows.items():
        table.add_row(
            name,
            *(
                f"{m['mean']:.3f}\n[{m['low']:.3f}, {m['high']:.3f}]".replace("[", r"\[")
                for m in map(metrics.get, shown)
            ),
        )
    for name, metrics in result["baselines"].items():
        table.add_row(name, *(f"{metrics[m]['mean']:.3f}" for m in shown))
    return table


if __name__ == "__main__":
    sys.exit(main())
