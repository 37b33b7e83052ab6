"""Check that the quickstart improved its model: prints every target with its result; exit code 1 if one is missed.

It reads what the quickstart wrote; `python -m experiments.quickstart_table` measures the baselines that need no PPO.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout

import numpy as np

from rlhf_dialog.commands.command_line import exit_code
from rlhf_dialog.config.loading import read_yaml
from rlhf_dialog.data.synthetic.pairs import attends, derives
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.intervals import Interval, difference, mean_statistic
from rlhf_dialog.runs.metrics_file import read_metrics
from scripts import quickstart

Check = tuple[str, bool, str]  # a target, whether it is met, what was measured
GAIN, LOST_SENTENCES = 0.15, 0.05


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=quickstart.RUN, help=f"run folder (default: {quickstart.RUN})")
    options = parser.parse_args(argv)
    checks: list[Check] = []
    with exit_code(debug=False) as ending:
        checks.extend(check_run(options.run))
    for name, passed, found in checks:
        print(f"{'pass' if passed else 'FAIL'}  {name}: {found}")
    return ending.code or int(not all(passed for _, passed, _ in checks))


def check_run(run: Path) -> list[Check]:
    """The targets of one quickstart. Raises UserError when the run is missing or not finished."""
    evaluation, metrics, replies = (run / name for name in ("evaluation.json", "metrics.jsonl", "replies.jsonl"))
    config = run / "config.yaml"
    target = read_yaml(config).get("kl_target") if config.is_file() else None
    if target is None or not all(file.is_file() for file in (evaluation, metrics, replies)):
        raise UserError(f"{run}: contains no finished quickstart; run `make quickstart` first")
    rows = [json.loads(line) for line in replies.read_text(encoding="utf-8").splitlines()]
    return [
        *_text_checks(json.loads(evaluation.read_text(encoding="utf-8"))),
        _kl_check(read_metrics(metrics), target),
        *_reply_checks(rows),
    ]


def _text_checks(result: dict[str, Any]) -> list[Check]:
    score = result["difference"]["score"]
    title = f"score went up by at least {GAIN:g}, its 95 % interval above zero"
    text = f"{score['mean']:+.3f} [{score['low']:+.3f}, {score['high']:+.3f}]"
    checks = [(title, score["mean"] >= GAIN and score["low"] > 0, text)]
    for name, low, high in (("distinct_2", 0.85, float("inf")), ("mean_length", 0.85, 1.15)):
        before, after = result["before"][name]["mean"], result["after"][name]["mean"]
        bound = f"at least {low:.0%}" if high == float("inf") else f"{low:.0%} to {high:.0%}"
        text = f"{before:.3f} -> {after:.3f} ({after / before:.0%})"
        checks.append((f"{name} is {bound} of what it was", low <= after / before <= high, text))
    return checks


def _kl_check(rows: list[dict[str, Any]], target: float) -> Check:
    last = [row["objective/kl"] for row in rows[-5:]]
    kl = sum(last) / len(last)
    title = "KL per token, last 5 iterations, between half of its target and twice"
    return title, target / 2 <= kl <= 2 * target, f"{kl:.4f}, target {target:g}"


def _reply_checks(rows: list[dict[str, Any]]) -> list[Check]:
    """Of the held-out replies: whether they are sentences of the receptionist, and whether they fit the guest's line."""
    turns = [row["prompt"][-1] for row in rows]
    before, after = ([row["replies"][name]["response"] for row in rows] for name in ("before", "after"))
    whole, fit = (
        [[float(check(*pair)) for pair in zip(turns, replies, strict=True)] for replies in (before, after)]
        for check in (lambda turn, reply: derives(reply), attends)
    )
    lost, gained = (
        difference(mean_statistic(np.array(old)), mean_statistic(np.array(new))) for old, new in (whole, fit)
    )
    return [
        (f"whole sentences: at most {LOST_SENTENCES:.0%} fewer", lost["mean"] >= -LOST_SENTENCES, _change(whole, lost)),
        ("replies that fit the guest's line: more, 95 % interval above zero", gained["low"] > 0, _change(fit, gained)),
    ]


def _change(found: list[list[float]], change: Interval) -> str:
    before, after = (sum(values) / len(values) for values in found)
    return f"{before:.0%} -> {after:.0%}, {change['mean']:+.3f} [{change['low']:+.3f}, {change['high']:+.3f}]"


if __name__ == "__main__":
    sys.exit(main())
