"""Check that the quickstart improved its model: prints every target with its result; exit code 1 if one is missed."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rlhf_dialog.commands.command_line import exit_code_of
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.found_config import number_in
from rlhf_dialog.runs.tracking import read_metrics

Check = tuple[str, bool, str]


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
    return [*_text_checks(result), _kl_check(read_metrics(metrics), kl_target)]


def _text_checks(result: dict[str, Any]) -> list[Check]:
    score = result["difference"]["score"]
    checks = [
        (
            "score went up, its 95 % interval above zero",
            score["low"] > 0,
            f"{score['mean']:+.3f} [{score['low']:+.3f}, {score['high']:+.3f}]",
        )
    ]
    for name, low, high in (("distinct_2", 0.8, float("inf")), ("mean_length", 0.8, 1.2)):
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
