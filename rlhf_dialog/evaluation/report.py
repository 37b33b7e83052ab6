"""The results of an evaluation for readers: tables for terminal and document, the replies themselves, JSON without NaN."""

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.table import Table

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.json_files import map_leaves

if TYPE_CHECKING:
    from rlhf_dialog.evaluation.replies import Replies

SHOWN = (
    *("score", "rouge1", "rougeLsum", "meteor", "meteor_margin", "sacrebleu", "intent_accuracy", "intent_macro_f1"),
    *("judge_accuracy", "judge_macro_f1", "mean_words", "distinct_2", "copied", "copied_two"),
)
OF_REFERENCES = ("true_replies", "random_reference")


def finite(node: Any) -> Any:
    """The same node with None for every number that JSON cannot represent (NaN, inf)."""
    return map_leaves(node, lambda leaf: None if isinstance(leaf, float) and not math.isfinite(leaf) else leaf)


def replies_text(prompts: list[Dialogue], systems: "dict[str, Replies]") -> str:
    """One JSON line per prompt, with the reply of every system."""
    lines = []
    for i, prompt in enumerate(prompts):
        said = {name: replies.dialogues[i] for name, replies in systems.items()}
        answers = {name: {"response": reply.response, "truncated": reply.truncated} for name, reply in said.items()}
        row = {"index": prompt.origin_of("index"), "prompt": prompt.prompt_turns, "references": prompt.references}
        lines.append(json.dumps({**row, "act": prompt.act, "replies": answers}, ensure_ascii=False) + "\n")
    return "".join(lines)


def verdict_line(result: dict[str, Any]) -> str | None:
    """`better: +0.54 [+0.46, +0.61] of score; nearest baseline: before, best of 8 (1.02)`; None without two scores to compare.

    Better or worse where the interval of the difference leaves 0 out. The nearest baseline is the row with the highest score
    that is neither the agent's nor made of references.
    """
    change = result.get("difference", {}).get("score", {})
    if change.get("mean") is None:
        return None
    word = "better" if change["low"] > 0 else "worse" if change["high"] < 0 else "no clear difference"
    rows = {"before": result["before"]} | result.get("sweep", {}) | result["baselines"]
    scores = {
        name: row["score"]["mean"]
        for name, row in rows.items()
        if row["score"]["mean"] is not None and not name.startswith("after") and name not in OF_REFERENCES
    }
    nearest = max(scores, key=scores.__getitem__)
    agent = result["after"]["score"]["mean"]
    return (
        f"{word}: {change['mean']:+.3f} [{change['low']:+.3f}, {change['high']:+.3f}] of score, to {agent:.3f}; nearest "
        f"baseline: {nearest} ({scores[nearest]:.3f})"
    )


def metric_tables(result: dict[str, Any], width: int) -> Iterator[Table]:
    """One row per system: mean and, for the agents, the 95 % interval; split into several tables to fit `width` characters."""
    rows, rows_without_interval, shown = split_rows(result)
    per_table = max((width - 30) // 12, 3)
    for start in range(0, len(shown), per_table):
        names = shown[start : start + per_table]
        table = Table(title="mean [95 % interval of this one run]", title_justify="left")
        table.add_column("system", overflow="fold", min_width=20)
        for name in names:
            table.add_column(name.replace("_", " "), justify="right", min_width=9)
        for system, metrics in rows.items():
            table.add_row(system, *(cell(metrics[name], "{mean:.3f}\n\\[{low:.3f}\n{high:.3f}]") for name in names))
        for system, metrics in rows_without_interval.items():
            table.add_row(system, *(cell(metrics[name], "{mean:.3f}") for name in names))
        yield table


def cell(metric: dict[str, float | None], form: str) -> str:
    """The numbers of a metric, or a dash when there are none; without an interval, its mean alone."""
    if metric["mean"] is None:
        return "-"
    return form.format(**metric) if metric["low"] is not None else f"{metric['mean']:.3f}"


def split_rows(result: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The rows with intervals, those without, and the columns."""
    systems = ("metrics", "before", "after", "difference")
    rows: dict[str, Any] = {name: result[name] for name in systems if name in result}
    others = result.get("sweep", {}) | result["baselines"]
    own = result.get("settings", {}).get("own_metrics", [])
    return rows, others, [name for name in dict.fromkeys([*SHOWN, *own]) if name in next(iter(rows.values()))]


def markdown(result: dict[str, Any]) -> str:
    """The same table for a document, with every interval, and the notes of the settings below it."""
    rows, others, shown = split_rows(result)
    lines = ["| system | " + " | ".join(shown) + " |", "|---" * (len(shown) + 1) + "|"]
    for name, metrics in (rows | others).items():
        cells = (cell(metrics[metric], "{mean:.3f} [{low:.3f}, {high:.3f}]") for metric in shown)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    notes = [line for note in result["settings"]["notes"] for line in ("", note)]
    return "\n".join(lines + notes) + "\n"
