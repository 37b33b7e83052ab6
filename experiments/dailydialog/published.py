"""The columns that OpenRL and RL4LMs have published for this task, measured as they did, with `<EOU>`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.dailydialog.reading import title_of
from experiments.dailydialog.sizes import RLOO, START
from experiments.dailydialog.work import Work
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs.metrics_file import read_metrics

if TYPE_CHECKING:
    from experiments.dailydialog.rows import Table
    from rlhf_dialog.evaluation.replies import Replies

COLUMNS = {
    "rouge1": "ROUGE-1",
    "rougeLsum": "ROUGE-Lsum",
    "meteor": "METEOR",
    "sacrebleu": "SacreBLEU",
    "judge_accuracy": "intent",
    "mean_words": "mean length",
}
TEMPERATURE = 1.0
SPOKEN = ("constant_reply", "long_constant_reply", "random_reference", "true_replies")
PUBLISHED = {  # the documentation of OpenRL 0.2, "Train Dialogue Agents"
    "RL4LMs, supervised": (None, 0.164, 0.137, 0.234, 0.063, 0.427, 18.95),
    "RL4LMs, PPO": (11.26, 0.169, 0.144, 0.198, 0.071, 0.455, 18.83),
    "OpenRL, PPO": (13.20, 0.181, 0.153, 0.292, 0.090, 0.435, 18.69),
}
WHY = (
    "These rows cannot be compared. As in the published ones, `<EOU>` ends references and finished replies here; METEOR finds "
    "three equal tokens in it, for which a constant reply is paid too. The published prompts are 3,123, with five turns or more, "
    "answered by a GPT-2 of 124 million parameters with top-k 20 and 20 tokens at most; their intent is judged by the classifier "
    "of the reward. FPS: generated tokens a second of the whole loop, here of a run on one core beside another, there on a GPU."
)


def markdown(work: Work) -> Iterator[str]:
    """The rows of this run, then those that were published."""
    yield from ("## Beside what was published", "", WHY, "", f"| replies | FPS | {' | '.join(COLUMNS.values())} |")
    yield "|---" * (len(COLUMNS) + 2) + "|"
    agents = [agent.folder for agent in work.size.agents if agent.name == RLOO]
    rows = {START: [f"{START}_0"], RLOO: [f"{folder}_0" for folder in agents]} | {name: [name] for name in SPOKEN}
    table = table_of(work, TEMPERATURE)
    for name, several in rows.items():
        points = [legacy(table, row) for row in several]
        means = [float(np.mean([one[metric] for one in points])) for metric in COLUMNS]
        yield line(title_of(name), speed(work, agents) if name == RLOO else None, *means)
    for title, values in PUBLISHED.items():
        yield line(title, *values)


def table_of(work: Work, temperature: float) -> "Table":
    """The prompts and kept replies of test at this temperature."""
    from experiments.dailydialog.rows import Plan, Table

    path = work.folder("test") / f"at_{temperature:g}.json"
    return Table(Plan(**json.loads(path.read_text(encoding="utf-8"))))


def stored(table: "Table", row: str) -> "Replies":
    """The replies of a row. Raises UserError where they are not there any more."""
    found = table.stored(row)
    if found is None:
        raise UserError(f"{table.folder}: has lost the replies of {row}; remove that folder, and run again")
    return found


def legacy(table: "Table", row: str) -> dict[str, float]:
    """The columns of one row, from its replies; the judged acts are those that were measured."""
    from experiments.dailydialog.numbers import RowFile
    from rlhf_dialog.evaluation.measure import Judges, measure

    judged = {"judge_accuracy": np.nanmean(RowFile(table.folder, row).read().get("judge_accuracy", np.nan))}
    return judged | measure(stored(table, row), Judges(legacy_eou=True)).points()


def speed(work: Work, folders: list[str]) -> float:
    """Tokens a second, the mean of these runs."""
    paths = [Path(work.folder("ppo") / folder / "metrics.jsonl") for folder in folders]
    return float(np.mean([read_metrics(path)[-1]["FPS"] for path in paths]))


def line(title: str, fps: float | None, *values: float) -> str:
    cells = ["-" if fps is None else f"{fps:.1f}", *(f"{value:.3f}" for value in values[:-1]), f"{values[-1]:.1f}"]
    return f"| {title} | {' | '.join(cells)} |"
