"""What of an audit is a hole, and what is only worth knowing."""

from collections.abc import Iterable
from typing import Any

from rlhf_dialog.evaluation.intervals import Interval

Finding = dict[str, Any]
SPAN = "{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def list_findings(result: dict[str, Any], defects: Iterable[dict[str, Any]], flat: Iterable[str]) -> list[Finding]:
    """The findings: `probe`, `hole`, `text` and their numbers; defects first, then holes, the largest difference first.

    A fixed probe is a hole where the interval of its difference to the true replies lies above zero, a search's row where also
    the interval of a judge's difference lies below zero. A part that does not vary is only named.
    """
    findings: list[Finding] = []
    for defect in defects:
        change = f"{defect['largest']:.2f} standard deviations of the scores"
        text = f"{defect['probe']}: the score of a reply changes by up to {change}"
        findings.append({"probe": defect["probe"], "hole": True, "text": text, "largest": defect["largest"]})
    paid_more = [(name, row) for name, row in result["probes"].items() if row["difference"]["low"] > 0]
    for name, row in sorted(paid_more, key=lambda item: -float(item[1]["difference"]["mean"])):
        text = f"{name}: paid {span(row['difference'])} more than true replies, and more at {row['more']['mean']:.0%} of prompts"
        findings.append({"probe": name, "hole": True, "text": text, **row["difference"]})
    for name, row in result["search"].items():
        judged = {judge: numbers["difference"] for judge, numbers in row["judges"].items()}
        below = {judge: difference for judge, difference in judged.items() if difference["high"] < 0}
        if row["difference"]["low"] > 0 and below:
            verdicts = ", ".join(f"{judge} says {span(difference)}" for judge, difference in below.items())
            text = f"{name}: paid {span(row['difference'])} more than true replies, but {verdicts}"
            findings.append({"probe": name, "hole": True, "text": text, **row["difference"], "judges": below})
    for name in flat:
        text = f"{part_title(name)}: hardly differs from reply to reply before training, so it decides nothing"
        findings.append({"probe": part_title(name), "hole": False, "text": text})
    return findings


def part_title(name: str) -> str:
    """The name of a finding about a part of the reward."""
    return f"part {name}"


def span(found: Interval) -> str:
    """`+0.512 [+0.440, +0.581]`."""
    return SPAN.format_map(found)
