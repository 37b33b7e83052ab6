"""Check that the quickstart improved its model: prints every target with its result; exit code 1 if one is missed."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rlhf_dialog.commands.command_line import exit_code_of
from rlhf_dialog.commands.quickstart import seconds_of
from rlhf_dialog.config.loading import load_config, shipped
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.made_up.judge import attends, derives
from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.distributed.random_states import seed_everything
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.found_config import number_in
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.rewards.composite import build_reward
from rlhf_dialog.runs.tracking import read_metrics

Check = tuple[str, bool, str]
PROMPTS = 300
TEMPERATURES = (0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5)


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
    for title, seconds, budget in seconds_of(Path()) if checks else []:
        print(f"time  {title}: {seconds:.0f} s (budget on two quiet cores: {budget} s)")
    return code or int(not all(passed for _, passed, _ in checks))


def check_run(run: Path) -> list[Check]:
    """The targets of the quickstart. Raises UserError when the run is missing or not finished."""
    evaluation, metrics = run / "evaluation.json", run / "metrics.jsonl"
    kl_target = number_in(run / "config.yaml", "kl_target")
    if not evaluation.is_file() or not metrics.is_file() or kl_target is None:
        raise UserError(f"{run}: contains no finished quickstart; run `make quickstart` first")
    result = json.loads(evaluation.read_text(encoding="utf-8"))
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    prompts = load_prompts(config["env"]["args"]["data_path"], "validation", config["context_size"], 1)[:PROMPTS]
    return [
        *_text_checks(result),
        _kl_check(read_metrics(metrics), kl_target),
        _sweep_check(run, config["model_path"], prompts),
        *_sentence_checks(run, config["model_path"], prompts),
    ]


def _sweep_check(run: Path, sft: str, prompts: list[Dialogue]) -> Check:
    """Whether the agent at its own sampling scores above the supervised model at every sharpness of sampling."""
    spec = load_config(shipped("configs") / "quickstart_score.yaml").reward_class
    reward = build_reward(spec.id, spec.args)

    def score(agent: ChatAgent, sampling: Sampling) -> float:
        seed_everything(0)
        agent.sampling = sampling
        replies = agent.reply(prompts)
        scores = reward([d.said(reply.text, reply.truncated) for d, reply in zip(prompts, replies, strict=True)])
        return sum(scores) / len(scores)

    before, after = ChatAgent.load(sft), ChatAgent.load(run / "agent")
    ways = {f"temperature {t:g}": replace(before.sampling, temperature=t) for t in TEMPERATURES}
    ways["greedy"] = replace(before.sampling, greedy=True)
    scores = {name: score(before, sampling) for name, sampling in ways.items()}
    best = max(scores, key=scores.__getitem__)
    mine = score(after, after.sampling)
    name = f"score above the SFT at every temperature of {TEMPERATURES[0]:g} to {TEMPERATURES[-1]:g} and greedy"
    return name, mine > scores[best], f"{mine:.3f} against {scores[best]:.3f} ({best})"


def _sentence_checks(run: Path, sft: str, prompts: list[Dialogue]) -> list[Check]:
    """Whether the grammar that wrote the dialogues derives the greedy replies to held-out prompts, before and after PPO."""
    checks = []
    for name, folder in (("SFT", sft), ("agent", run / "agent")):
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
        "KL per token, last 5 iterations, between half of its target and twice",
        target / 2 <= kl <= 2 * target,
        f"{kl:.4f}, target {target:g}",
    )


if __name__ == "__main__":
    sys.exit(main())
