"""One HTML file about one or several runs: what it shows is JSON in it, which its script draws."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from rlhf_dialog.evaluation.gain import SUMS
from rlhf_dialog.evaluation.run_page.verdict import Row, all_signs, kl_target, verdict

TEMPLATE = Path(__file__).parent / "page.html"
MAX_POINTS, MAX_SAMPLES, MAX_LETTERS = 400, 60, 2000  # of a curve; of all runs; of a text
BEFORE_AFTER, MAX_REPLY = 3, 300  # replies of an iteration at the top of the page; letters of each
T = TypeVar("T")
State = Literal["running", "ended", "stopped"]
Values = list[float | None]
SCORE = "objective/score"
FIRST = ("run", "prompt", "reply", "score")  # columns of the newest rollout that a reader looks for
COUNTERS = ("iteration", "time_steps", "episodes", "step")
TOLERANCE = 1e-5  # of the score; metrics are means of 32-bit numbers


def number(value: Any) -> float | None:
    """The value with 6 digits; None for what is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


def groups(num_rows: int) -> list[slice]:
    """The rows in at most 400 groups of neighbours, all of one size but the last: each is a point of a curve."""
    size = max(math.ceil(num_rows / MAX_POINTS), 1)
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def thin_out(values: Sequence[float | None]) -> Values:
    """The mean of the known numbers of each group; None for a group that has none."""
    means: Values = []
    for group in groups(len(values)):
        numbers = [value for value in values[group] if value is not None and math.isfinite(value)]
        means.append(number(math.fsum(numbers) / len(numbers)) if numbers else None)
    return means


def build_curves(rows: Sequence[Row]) -> dict[str, Values]:
    """Metric -> its points, for every metric that has one, except for seconds, counters and the sums behind the gain."""
    hidden = ("time/", SUMS)
    names = dict.fromkeys(name for row in rows for name in row if name not in COUNTERS and not name.startswith(hidden))
    curves = {name: thin_out([row.get(name) for row in rows]) for name in names}
    return {name: values for name, values in curves.items() if any(value is not None for value in values)}


def reward_parts(rows: Sequence[Row]) -> dict[str, Values]:
    """The weighted parts of the score, one number a row, which add up to it; what no part explains is a part as well.

    Empty for a run whose rewards have no parts.
    """
    part = re.compile("reward/([^/]*)_weighted")
    names = {name: match[1] for row in rows for name in row if (match := part.fullmatch(name))}
    if not names:
        return {}
    parts: dict[str, Values] = {title: [row.get(name) for row in rows] for name, title in names.items()}
    rest: Values = []
    for row in rows:
        known = [x for name in (SCORE, *names) if (x := row.get(name)) is not None and math.isfinite(x)]
        rest.append(known[0] - math.fsum(known[1:]) if len(known) == 1 + len(names) else None)
    if any(abs(x or 0.0) > TOLERANCE * max(abs(row.get(SCORE) or 0.0), 1) for x, row in zip(rest, rows, strict=True)):
        parts["the rest (truncation penalty, environment)"] = rest
    return parts


@dataclass(frozen=True)
class PageSample:
    """The end of a dialogue, a person's reply, and the replies of systems by their names."""

    prompt: str
    reference: str
    replies: dict[str, str]


@dataclass(frozen=True)
class Live:
    """A run that writes its page while it trains: how far it is, and how long the page may be silent before it is stale."""

    state: State
    iteration: int
    progress: float  # the share that is done, 0 to 1
    written: float  # seconds of the epoch
    every: float  # seconds after which the page loads itself again
    pause: float  # seconds until the next page is expected
    why: str = ""  # what stopped it


@dataclass(frozen=True)
class RunRecord:
    """What a run has left: the lines of metrics.jsonl, config.yaml, replies, and what is known of how it was made."""

    name: str
    rows: list[Row]
    config: dict[str, Any] = field(default_factory=dict)
    samples: list[PageSample] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    newest: list[Row] = field(default_factory=list)  # rows of the ledger, those of the newest iteration
    live: Live | None = None
    first: list[Row] = field(default_factory=list)  # rows with texts of the first iteration that has any
    # the first and the newest row of each prompt that was answered again
    pairs: list[tuple[Row, Row]] = field(default_factory=list)


def build_page(runs: Sequence[RunRecord]) -> str:
    """The page of runs that have at least one line of metrics each."""
    data = json.dumps(_data(runs), allow_nan=False, separators=(",", ":"))
    return TEMPLATE.read_text(encoding="utf-8").replace("__DATA__", data.replace("<", "\\u003c"))


def _data(runs: Sequence[RunRecord]) -> dict[str, Any]:
    merged = merge(runs)
    live = runs[0].live if len(runs) == 1 else None
    return {
        "rules": [sign.row for sign in all_signs().values()],
        "runs": [_run_data(run) for run in runs],
        "replies": before_after(runs),
        "differences": [[shorten(cell) for cell in row] for row in differences(runs)],
        "samples": [asdict(sample) for sample in some(merged, MAX_SAMPLES)],
        "num_samples": len(merged),
        "newest": newest(runs),
        "num_newest": sum(len(run.newest) for run in runs),
        "live": live and asdict(live),
    }


def some(items: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of the items, evenly."""
    return [items[len(items) * k // limit] for k in range(limit)] if len(items) > limit else list(items)


def before_after(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """A table of early and late replies, each pair to one prompt.

    Before training has come back to a prompt, the table has replies of the first and the newest iteration, and says so.
    """
    rows: list[tuple[RunRecord, list[Any]]]
    if any(run.pairs for run in runs):
        title = "Replies before and after"
        columns = ["last turn", "before", "after", "score before", "score after", "iterations"]
        rows = [(run, _both(*pair)) for run in runs for pair in run.pairs[:BEFORE_AFTER]]
    else:
        title = "Replies of the first and the newest iteration, to different prompts"
        columns = ["iteration", "last turn", "reply", "score"]
        rows = [
            (run, [row["iteration"], _last_turn(row), row["reply"], row.get("score")])
            for run in runs
            for row in _ends(run)
        ]
    if len(runs) > 1:
        columns = ["run", *columns]
        rows = [(run, [run.name, *cells]) for run, cells in rows]
    return {"title": title, "columns": columns, "rows": [[_cell(cell, MAX_REPLY) for cell in row] for _, row in rows]}


def _ends(run: RunRecord) -> list[Row]:
    """Rows with replies of the first and of the newest iteration."""
    newest = [row for row in run.newest if "reply" in row]
    is_later = not run.first or (newest and newest[0]["iteration"] != run.first[0]["iteration"])
    return some(run.first, BEFORE_AFTER) + (some(newest, BEFORE_AFTER) if is_later else [])


def _both(first: Row, newest: Row) -> list[Any]:
    iterations = f"{first['iteration']} and {newest['iteration']}"
    return [_last_turn(first), first["reply"], newest["reply"], first.get("score"), newest.get("score"), iterations]


def _last_turn(row: Row) -> Any:
    turns = row.get("prompt") or [""]
    return turns[-1] if isinstance(turns, list) else turns


def newest(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Some of the newest rows of the ledgers as a table; rows with texts, and their columns, come first."""
    rows = [({"run": run.name} if len(runs) > 1 else {}) | row for run in runs for row in run.newest]
    shown = some([row for row in rows if "reply" in row], MAX_SAMPLES)
    shown += some([row for row in rows if "reply" not in row], MAX_SAMPLES - len(shown))
    names = dict.fromkeys(name for row in shown for name in row)
    others = [name for name in names if not name.startswith("time/") and not name.endswith("_weight")]
    columns = [name for name in dict.fromkeys([*FIRST, *others]) if name in names]
    return {
        "columns": [shorten(name) for name in columns],
        "rows": [[_cell(row.get(name)) for name in columns] for row in shown],
    }


def _cell(value: Any, letters: int = MAX_LETTERS) -> float | str | None:
    """A number as it is drawn in curves, everything else as text; turns are lines."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, int | float):
        return number(value)
    return shorten("\n".join(map(str, value)) if isinstance(value, list) else str(value), letters)


def _run_data(run: RunRecord) -> dict[str, Any]:
    headline, findings = verdict(run.rows, run.config)
    return {
        "name": shorten(run.name),
        "headline": headline,
        "findings": [[one.sign, one.state, one.sentence] for one in findings],
        "iterations": [[run.rows[group][place]["iteration"] for place in (0, -1)] for group in groups(len(run.rows))],
        "curves": build_curves(run.rows),
        "parts": {name: thin_out(values) for name, values in reward_parts(run.rows).items()},
        "target": kl_target(run.config),
        "facts": [[name, shorten(value)] for name, value in run.facts],
    }


def shorten(text: str, letters: int = MAX_LETTERS) -> str:
    """The text, cut where it is longer."""
    return text if len(text) <= letters else text[: letters - 1] + "…"


def merge(runs: Sequence[RunRecord]) -> list[PageSample]:
    """The samples of all runs, one for each prompt: the replies of several runs to it are side by side."""
    merged: dict[tuple[str, str], PageSample] = {}
    for run in runs:
        for one in run.samples:
            prompt, reference = shorten(one.prompt), shorten(one.reference)
            row = merged.setdefault((prompt, reference), PageSample(prompt, reference, {}))
            for system, reply in one.replies.items():
                row.replies[shorten(system if len(runs) == 1 else f"{run.name}: {system}")] = shorten(reply)
    return list(merged.values())


def differences(runs: Sequence[RunRecord]) -> list[list[str]]:
    """The keys of config.yaml that the runs do not have in common: key, then the value in each run, `-` where there is none."""
    flat = [dict(_leaves(run.config)) for run in runs]
    keys = dict.fromkeys(key for leaves in flat for key in leaves)
    rows = [[key, *(leaves.get(key, "-") for leaves in flat)] for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1]


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The values of nested mappings and lists, as JSON, with their dotted keys."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if not items:
        yield path, json.dumps(node, default=str, ensure_ascii=False)
        return
    for key, value in items:
        yield from _leaves(value, f"{path}.{key}" if path else str(key))
