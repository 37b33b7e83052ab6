"""An audit for a terminal of 100 columns; the result is that of the JSON, in which None is a missing number."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rich.table import Table

from rlhf_dialog.evaluation.audit.checks import SPAN
from rlhf_dialog.evaluation.audit.probes import TRUE
from rlhf_dialog.evaluation.report import cell

WIDTH = 100  # columns
NAME_WIDTH = 26
NUM_LISTED = 12  # findings; the JSON has all
NUM_TEXTS = 2
Rows = dict[str, dict[str, Any]]


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


def score_tables(result: dict[str, Any]) -> Iterator[Table]:
    """What is paid, the means of the parts, and what the judges say: of the best paid probe of each family, and the search."""
    rows = shown(result)
    yield _table("paid, and the difference to true replies", rows, PAID_COLUMNS)
    parts: Cells = {name: partial(_part_cell, name) for name in result["parts"]}
    for names in _fitting(parts, lambda name: max(len(name), 7) + 3):
        table = _table("mean of each part, times its weight", rows, names)
        table.add_section()
        table.add_row("share of the variance", *(f"{result['parts'][name]:.0%}" for name in names))
        yield table
    judges: Cells = {name: partial(_judge_cell, name) for name in rows[TRUE]["judges"]}
    for names in _fitting(judges, lambda name: max(len(name), 24) + 3):
        yield _table("judges: the difference to true replies", rows, names)
    if result["calibration"]:
        yield _calibration(result["calibration"])


def shown(result: dict[str, Any]) -> Rows:
    """The rows of the tables: true replies, the best paid probe of each family, the search."""
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
        yield _shorten(f"said last: {one['last_turn']}")
        for name in ("true", "training reply", "changed words", "words from nothing"):
            yield _shorten(f"  {one[name]['paid']:+.3f} {name}: {one[name]['text']}")


Cells = dict[str, Callable[[dict[str, Any]], str]]


PAID_COLUMNS: Cells = {
    "paid [95 %]": lambda row: cell(row["paid"], "{mean:.3f} [{low:.3f}, {high:.3f}]"),
    "difference [95 %]": lambda row: cell(row["difference"], SPAN),
    "more at": lambda row: cell(row["more"], "{mean:.0%}"),
}


def _part_cell(name: str, row: dict[str, Any]) -> str:
    return cell({"mean": row["parts"][name]}, "{mean:.3f}")


def _judge_cell(name: str, row: dict[str, Any]) -> str:
    return cell(row["judges"][name]["difference"], SPAN)


def _table(title: str, rows: Rows, columns: Cells) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("reply", max_width=NAME_WIDTH, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    for name, row in rows.items():
        table.add_row(name, *(text_of(row) for text_of in columns.values()))
    return table


def _fitting(columns: Cells, width: Callable[[str], int]) -> Iterator[Cells]:
    """The columns in groups that fit beside the names."""
    group: Cells = {}
    for name, text_of in columns.items():
        if group and sum(map(width, [*group, name])) > WIDTH - NAME_WIDTH - 4:
            yield group
            group = {}
        group[name] = text_of
    if group:
        yield group


def _calibration(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="how sure the classifiers are of true replies", title_justify="left")
    for name in ("part", "confidence", "accuracy", "calibration error"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for one in rows:
        table.add_row(one["part"], *(f"{one[key]:.3f}" for key in ("confidence", "accuracy", "error")))
    return table


def _shorten(line: str) -> str:
    line = line.replace("\n", " ")
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..."
