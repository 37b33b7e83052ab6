"""What of an audit is a hole, and what is only worth knowing."""

from collections.abc import Iterable
from typing import Any

Finding = dict[str, Any]
NOT_JUDGED = "no judge tells true replies from random ones at these prompts, so none can say whether they are worse"
SPAN = "{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def list_findings(result: dict[str, Any], defects: Iterable[dict[str, Any]], flat: Iterable[str]) -> list[Finding]:
    """The findings: `probe`, `hole`, `text` and their numbers; defects first, then holes, the largest difference first.

    A fixed probe is a hole where the interval of its difference to the true replies lies above zero, a search's row where also
    the interval of a judge's difference lies below zero. Without such a judge, the row is `unjudged` where no judge tells true
    replies from random ones (`result["telling"]`), else it is named, as a part that does not vary.
    """
    findings: list[Finding] = []
    for defect in defects:
        change = f"{defect['largest']:.2f} standard deviations of the scores"
        text = f"{defect['probe']}: the score of a reply changes by up to {change}"
        findings.append({"probe": defect["probe"], "hole": True, "text": text, "largest": defect["largest"]})
    paid_more = [(name, row) for name, row in result["probes"].items() if row["difference"]["low"] > 0]
    for name, row in sorted(paid_more, key=lambda item: -float(item[1]["difference"]["mean"])):
        findings.append({"probe": name, "hole": True, "text": paid_more_text(name, row), **row["difference"]})
    for name, row in result["search"].items():
        judged = {judge: numbers["difference"] for judge, numbers in row["judges"].items()}
        below = {judge: difference for judge, difference in judged.items() if difference["high"] < 0}
        if row["difference"]["low"] > 0:
            able = below or {judge: difference for judge, difference in judged.items() if judge in result["telling"]}
            opinions = [f"{judge} says {SPAN.format_map(difference)}" for judge, difference in able.items()]
            conclusion = "but " if below else "no judge puts it below them: " if able else NOT_JUDGED
            text = f"{paid_more_text(name, row)}; {conclusion}{', '.join(opinions)}"
            finding = {"probe": name, "hole": bool(below), "unjudged": not able, "text": text}
            findings.append(finding | row["difference"] | {"judges": below})
    for name in flat:
        text = f"part {name}: hardly differs from reply to reply before training, so it decides nothing"
        findings.append({"probe": f"part {name}", "hole": False, "text": text})
    return findings


def paid_more_text(name: str, row: dict[str, Any]) -> str:
    """What replies of this kind are paid."""
    difference, share = SPAN.format_map(row["difference"]), row["more"]["mean"]
    return f"{name}: paid {difference} more than true replies, and more at {share:.0%} of prompts"
