"""The table of dialogue policies for readers: for the terminal, and as Markdown for a document."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from experiments.policies_table.rows import Row
from rlhf_dialog.evaluation.intervals import Interval

LOSES = " (loses to random)"
Lines = tuple[str, list[str], list[list[str]]]


def tables(rows: Sequence[Row], test_dialogues: int) -> Iterator[Table]:
    """A table for each error rate."""
    for title, names, lines in _lines(rows, test_dialogues):
        table = Table(title=title, title_justify="left")
        for name in names:
            table.add_column(name, justify="left" if name == "policy" else "right")
        for line in lines:
            table.add_row(*(cell.replace(" [", "\n\\[") for cell in line))
        yield table


def markdown(rows: Sequence[Row], test_dialogues: int) -> str:
    """One table for each error rate, in Markdown."""
    parts = []
    for title, names, lines in _lines(rows, test_dialogues):
        head = [f"{title}:", "", f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
        parts += [*head, *(f"| {' | '.join(line)} |" for line in lines), ""]
    return "\n".join(parts)


def _lines(rows: Sequence[Row], test_dialogues: int) -> Iterator[Lines]:
    """For each error rate: title, names of the columns, and one line of cells for each policy, the highest reward first."""
    for error_rate in sorted({row["error_rate"] for row in rows}):
        at_rate = [row for row in rows if row["error_rate"] == error_rate]
        marks = sorted({row["mark"] for row in at_rate if row["mark"]})
        of_policy: dict[str, dict[int, Row]] = {}
        for row in at_rate:
            of_policy.setdefault(row["policy"], {})[row["mark"]] = row
        ranked = sorted(of_policy.values(), key=lambda points: -points[max(points)]["reward"]["mean"])
        successes = [f"success % after {mark:,}" for mark in marks] or ["success %"]
        names = ["policy", "seeds", *successes, "reward", "turns", "reward - handcrafted"]
        names += ["dialogues", "CPU s", "parameters"]
        title = (
            f"{100 * error_rate:g} % error, {test_dialogues:,} test dialogues, mean [95 % interval {_over(at_rate)}]"
        )
        yield title, names, [_line(points, marks) for points in ranked]


def _over(rows: Sequence[Row]) -> str:
    """What the intervals draw: training seeds, if there are several."""
    most = max(len(row["seeds"]) for row in rows)
    return "of this one run" if most == 1 else f"over {most} training seeds and the dialogues"


def _line(points: dict[int, Row], marks: Sequence[int]) -> list[str]:
    """Success at each mark; everything else at the last one. A policy that does not learn has the same success everywhere."""
    last = points[max(points)]
    training, difference = last["training"], last["difference_from_handcrafted"]
    measured: list[Row | None] = [points.get(mark) for mark in marks]
    if not last["mark"]:  # the policy does not learn
        measured = [*measured[:-1], last]
    successes = [_cell(row and row["success"], "{:.1f}", 100) for row in measured]
    shown = difference["reward"] if difference and last["policy"] != "handcrafted" else None
    return [
        last["policy"] + (LOSES if last["loses_to_random"] else ""),
        str(len(last["seeds"])),
        *successes,
        _cell(last["reward"], "{:.2f}"),
        _cell(last["turns"], "{:.2f}"),
        _cell(shown, "{:+.2f}"),
        _count(training["dialogues"], "{:,.0f}"),
        _count(training["cpu_seconds"] if training["dialogues"] else None, "{:,.1f}"),
        _count(training["parameters"], "{:,.0f}"),
    ]


def _cell(interval: Interval | None, form: str, factor: float = 1.0) -> str:
    if interval is None:
        return ""
    mean, low, high = (form.format(factor * interval[key]) for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def _count(number: float | None, form: str) -> str:
    return form.format(number) if number else ""
