"""Which of its settings each way of PPO gets, with a seed that is in no table.

A score on validation prompts has an error of 0.01, which is as large as the gain of a short run. The gain over the reference on
the same prompts (`evaluation.gain`) has a tenth of it; no prompt of a short run comes a second time.
"""

from pathlib import Path

from experiments.dailydialog.calls import run_jobs
from experiments.dailydialog.pretrained import measuring, training
from experiments.dailydialog.sizes import START
from experiments.dailydialog.systems import System
from experiments.dailydialog.work import Work
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.gain import REFERENCE, Gain, recent_gain

DISTINCT, LENGTH = 0.85, 0.1  # distinct-2 is at least this share of SFT's, length within this share of it
NUMBERS = ("score", "meteor_margin", "judge_accuracy", "distinct_2", "mean_words")


def choose(work: Work) -> None:
    """Train with each of the settings, measure on validation, and write `setting.json`."""
    path = work.folder("settings") / training.CHOSEN_SETTING
    if path.is_file():
        return
    some = training.setting_agents(work)
    training.train(work, some, {})
    rows, changes = measuring.setting_rows(work), measuring.on_validation(work)
    run_jobs([measuring.table_job(work, "settings", "rows", rows, changes)])
    folder = work.folder("settings") / "rows"
    names = {START: START} | {agent.name: agent.folder for agent in some}
    systems = {title: System.read(title, folder, [[f"{name}_0"]]) for title, name in names.items()}
    numbers = {title: {metric: one.point(metric) or 0.0 for metric in NUMBERS} for title, one in systems.items()}
    for agent in some:
        gain = last_gain(folder.parent / agent.folder)
        numbers[agent.name] |= {"gain": gain.mean, "gain_is_over_reference": float(gain.over == REFERENCE)}
    chosen = {}
    for way in training.WAYS:
        tried = [agent.name for agent in training.setting_agents(work, way)]
        best = best_of({title: numbers[title] for title in (START, *tried)})
        chosen[way] = work.size.settings[way][tried.index(best)]
    replace_json(path, {"keys": chosen, "validation": numbers})


def last_gain(run: Path) -> Gain:
    """The gain of the newest half of a run's iterations; too far from the reference, their score less that of the first.

    Raises UserError for a run that has neither.
    """
    from rlhf_dialog.runs.metrics_file import read_metrics

    path = run / "metrics.jsonl"
    rows = read_metrics(path)
    if len(rows) == 1:  # the policy before the first step is the reference
        return Gain(0.0, 0.0, int(rows[0]["episodes"]), REFERENCE)
    gain = recent_gain(rows, num_iterations=len(rows) - len(rows) // 2)
    if gain is None:
        raise UserError(
            f"{path}: neither the gain nor the scores of its newest lines have a standard error; train longer"
        )
    return gain


def best_of(numbers: dict[str, dict[str, float]]) -> str:
    """The setting with the highest gain.

    Among those that keep distinct-2 and length near those of the SFT model; among all where none does.
    """
    start = numbers[START]
    settings = [title for title in numbers if title != START]
    near = [title for title in settings if is_near(numbers[title], start)]
    return max(near or settings, key=lambda title: numbers[title]["gain"])


def is_near(agent: dict[str, float], start: dict[str, float]) -> bool:
    """Whether distinct-2 and length are within their limits."""
    moved = abs(agent["mean_words"] - start["mean_words"])
    return agent["distinct_2"] >= DISTINCT * start["distinct_2"] and moved <= LENGTH * start["mean_words"]
