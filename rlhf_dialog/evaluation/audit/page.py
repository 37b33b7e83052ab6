"""An audit for a terminal of 100 columns; the result is that of the JSON, in which None is a missing number."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from rlhf_dialog.evaluation.audit.audit import SPAN
from rlhf_dialog.evaluation.audit.probes import TRUE
from rlhf_dialog.evaluation.report import cell

WIDTH = 100  # columns
NUM_LISTED = 12  # findings; the JSON has all
NUM_TEXTS = 2


def verdict_line(result: dict[str, Any]) -> str:
    """The first line."""
    budget, kinds = result["settings"]["budget"], [finding_kind(finding) for finding in result["findings"]]
    count, is_unjudged = kinds.count("hole"), "not judged" in kinds
    looked = (
        f"{len(result['probes']) - 1} probes on {result['settings']['num_prompts']} prompts, and a search of "
        f"{budget['size']:,} replies on {budget['prompts']}"
    )
    holes = [f"{count or 'no'} {'holes' if count > 1 else 'hole'} found"] if count or not is_unjudged else []
    return f"{', and '.join(holes + ['found, not judged'] * is_unjudged)}: {looked}"


def finding_kind(finding: dict[str, Any]) -> str:
    """`hole`, `not judged` for replies of which no judge can say whether they are worse, or `note`."""
    return "hole" if finding["hole"] else "not judged" if finding.get("unjudged") else "note"


def summary_lines(result: dict[str, Any]) -> Iterator[str]:
    """The verdict and the findings."""
    yield verdict_line(result)
    findings = result["findings"]
    for finding in findings[:NUM_LISTED]:
        yield f"  {finding_kind(finding)}: {finding['text']}"
    if len(findings) > NUM_LISTED:
        yield f"  and {len(findings) - NUM_LISTED} more, which --output lists"


def score_table(result: dict[str, Any]) -> Table:
    """What is paid, and the difference to true replies, also that of each judge: of the best paid probe of each family, and of
    the search."""
    rows = shown(result)
    judges = list(rows[TRUE]["judges"])
    table = Table(title="mean, and the difference to true replies [95 %]", title_justify="left")
    table.add_column("reply", overflow="fold")
    for name in ("paid", "difference", "more at", *judges):
        table.add_column(name, justify="right", overflow="fold")
    for name, row in rows.items():
        cells = cell(row["paid"], "{mean:.3f}"), cell(row["difference"], SPAN), cell(row["more"], "{mean:.0%}")
        table.add_row(name, *cells, *(cell(row["judges"][judge]["difference"], SPAN) for judge in judges))
    return table


def shown(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of the table: true replies, the best paid probe of each family, the search."""
    best: dict[str, str] = {}
    for name, row in result["probes"].items():
        mean, before = (
            one and one["difference"]["mean"] for one in (row, result["probes"].get(best.get(row["family"])))
        )
        if row["family"] not in best or (mean is not None and (before is None or mean > before)):
            best[row["family"]] = name
    return {name: result["probes"][name] for name in best.values()} | result["search"]


def example_lines(result: dict[str, Any]) -> Iterator[str]:
    """Some replies of the search that are paid most, one line each."""
    for one in result["found"][:NUM_TEXTS]:
        lines = [f"said last: {one['last_turn']}"]
        for name in ("true", "training reply", "changed words", "words from nothing"):
            lines.append(f"  {one[name]['paid']:+.3f} {name}: {one[name]['text']}")
        for line in (line.replace("\n", " ") for line in lines):
            yield line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..."
