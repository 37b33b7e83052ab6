"""Check that the quickstart improved its model: prints every target with its result; exit code 1 if one is missed."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rlhf_dialog.commands.command_line import exit_code_of
from rlhf_dialog.data.made_up.judge import attends, derives
from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.found_config import number_in
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.runs.tracking import read_metrics

Check = tuple[str, bool, str]
PROMPTS = 300


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--run", type=Path, default=Path("runs/quickstart"), help="run folder (default: runs/quickstart)"
    )
    options = parser.parse_args(argv)
    checks: list[Check] = []
    code = exit_code_of(lambda: checks.extend(check_run(options.run)), debug=False)
    for name, passed, found in checks:
        print(f"{'pass' if passed else 'FAIL'}  {name}: {found}")
    return code or int(not all(passed for _, passed, _ in checks))


def check_run(run: Path) -> list[Check]:
    """The targets of the quickstart. Raises UserError when the run is missing or not finished."""
    evaluation, metrics = run / "evaluation.json", run / "metrics.jsonl"
    kl_target = number_in(run / "config.yaml", "kl_target")
    if not evaluation.is_file() or not metrics.is_file() or kl_target is None:
        raise UserError(f"{run}: contains no finished quickstart; run `make quickstart` first")
    result = json.loads(evaluation.read_text(encoding="utf-8"))
    return [*_text_checks(result), _kl_check(read_metrics(metrics), kl_target), *_sentence_checks(run)]


def _sentence_checks(run: Path) -> list[Check]:
    """Whether the grammar that wrote the dialogues derives the greedy replies to held-out prompts, before and after PPO."""
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    prompts = load_prompts(config["env"]["args"]["data_path"], "validation", config["context_size"], 1)[:PROMPTS]
    checks = []
    for name, folder in (("SFT", config["model_path"]), ("agent", run / "agent")):
        agent = ChatAgent.load(str(folder))
        agent.sampling = replace(agent.sampling, greedy=True)
        texts = [reply.text for reply in agent.reply(prompts)]
        share = sum(map(derives, texts)) / len(texts)
        fits = sum(attends(d.prompt_turns[-1], text) for d, text in zip(prompts, texts, strict=True)) / len(texts)
        found = f"{share:.0%}; {fits:.0%} fit their prompt"
        checks.append((f"at least 90 % of the greedy replies of the {name} are sentences", share >= 0.9, found))
    return checks


def _text_checks(result: dict[str, Any]) -> list[Check]:
    score = result["difference"]["score"]
    checks = [
        (
            "score went up by at least 0.15, its 95 % interval above zero",
            score["mean"] >= 0.15 and score["low"] > 0,
            f"{score['mean']:+.3f} [{score['low']:+.3f}, {score['high']:+.3f}]",
        )
    ]
    for name, low, high in (("distinct_2", 0.85, float("inf")), ("mean_length", 0.85, 1.15)):
        before, after = result["before"][name]["mean"], result["after"][name]["mean"]
        ratio = after / before
        bound = f"at least {low:.0%}" if high == float("inf") else f"{low:.0%} to {high:.0%}"
        checks.append(
            (f"{name} is {bound} of what it was", low <= ratio <= high, f"{before:.3f} -> {after:.3f} ({ratio:.0%})")
        )
    return checks


def _kl_check(rows: list[dict[str, Any]], target: float) -> Check:
    last = [row["objective/kl"] for row in rows[-5:]]
    kl = sum(last) / len(last)
    return (
        "KL per token, last 5 iterations, within twice its target",
        kl <= 2 * target,
        f"{kl:.4f}, target {target:g}",
    )


if __name__ == "__main__":
    sys.exit(main())
