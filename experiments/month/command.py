"""A month with simulated people, offline: they talk to a small bot by day and judge its answers by a scripted taste, with errors
and a troll among them; it learns by night. What the taste likes of its answers to held-out prompts is measured after each night.

Dialogues and the model that the bot begins with are made on the spot. A month that was interrupted goes on.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.month.liked_plot import plot_liked
from experiments.month.simulation import Month, MonthKeys, Row
from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.commands.command_line import versions
from rlhf_dialog.commands.options import YamlOptions, run_command
from rlhf_dialog.errors import UserError
from rlhf_dialog.terminal import Console
from scripts.quickstart import Stage, run_stages

logger = logging.getLogger(__name__)
# quantiles of Student's t, 1 to 9 degrees of freedom
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
DATA, BASE = Path("runs/month_data"), Path("runs/month_sft")
STAGES = (
    Stage(
        "write dialogues",
        f"-m experiments.everyday_dialogues --output {DATA} --num_dialogues 2000 --scenes hotel",
        (),
        DATA,
    ),
    Stage(
        "supervised fine-tuning of a small Llama from scratch",
        "-m rlhf_dialog train-sft --config sft_month.yaml",
        (Path("configs/sft_month.yaml"), DATA),
        BASE,
    ),
)


class MonthOptions(YamlOptions[MonthKeys]):
    description = __doc__
    schema = MonthKeys


def main(argv: list[str] | None = None) -> int:
    """The command line, with --config month.yaml unless another one is given; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not any(word.split("=")[0] in ("--config", "--help", "-h") for word in words):
        words = ["--config", "month.yaml", *words]
    return run_command(MonthOptions, lambda options: run(options.settings), words)


def run(config: MonthKeys) -> None:
    """Make what is missing of data and model, then the month or the study."""
    console = Console(highlight=False, soft_wrap=True)
    prepare(config, console)
    if config.troll_study:
        study(config, console)
    else:
        month(config, console)


def prepare(config: MonthKeys, console: Console) -> None:
    """The stages that write what the configuration names. Raises UserError when one fails."""
    named = {Path(config.data_path), Path(config.agent)}
    for stage in STAGES:
        if stage.output in named and (code := run_stages([stage], Path(), console)):
            raise UserError(f"{stage.title}: ended with exit code {code}; its message is above")


def month(config: MonthKeys, console: Console) -> None:
    """One month: a line a night, month.json and month.png in its folder."""
    one = lived(config, console)
    silent = one.drift()
    summary = summary_of(one.rows) | {"silent_night": silent, "rows": one.rows, "config": config.model_dump()}
    summary["versions"] = versions("rlhf-dialog", "torch", "transformers")
    write_json(one.folder / "month.json", summary)
    plot_liked(one.rows, f"{config.output}: seed {config.seed}", one.folder / "month.png")
    console.print(
        f"liked answers to {len(one.prompts)} held-out prompts: {summary['first']:.1%} at the start, {summary['last']:.1%} after "
        f"night {config.nights} ({100 * summary['gain']:+.1f} points); {summary['promoted']} nights promoted, "
        f"{summary['refused']} refused"
    )
    console.print(f"a night without feedback: weights {'equal' if silent['equal'] else 'CHANGED'} ({silent['why']})")
    console.print(f"wrote {one.folder}/month.json, {one.folder}/month.png")


def lived(config: MonthKeys, console: Console) -> Month:
    """The month, to its last night, with a progress bar and a line for each night."""
    one = Month(config)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("night", total=config.nights, completed=max(len(one.rows) - 1, 0))
        for row in one.nights():
            console.print(line_of(row))
            bar.update(task, completed=row["night"])
    return one


def line_of(row: Row) -> str:
    """`night 3: 29.0 % liked, 270 events (40 % the troll's); promoted: ...`."""
    troll = row["troll_events"] / row["events"] if row["events"] else 0.0
    return (
        f"night {row['night']}: {row['liked']:.1%} liked, {row['words']:.1f} words, {row['events']} events ({troll:.0%} of the "
        f"troll); of the training set {row['troll_training']:.1%}, of the gate {row['troll_gate']:.1%}; {row['why']}"
    )


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Liked shares and counts of a month."""
    first, last = rows[0]["liked"], rows[-1]["liked"]
    counts = {
        name: sum(row["promoted"] is value for row in rows) for name, value in (("promoted", True), ("refused", False))
    }
    within = all(row["within_cap"] for row in rows[1:])
    return {"first": first, "last": last, "gain": last - first, **counts, "troll_within_cap": within}


def study(config: MonthKeys, console: Console) -> None:
    """The table of what the troll changes: pairs of months of one seed, with and without the troll."""
    pairs, within, shares = [], True, [0.0, 0.0]
    for seed in range(config.seed, config.seed + config.study_seeds):
        lasts = []
        for share in (0.0, config.troll_share):
            name = f"{config.output}_study/seed_{seed}_{'troll' if share else 'alone'}"
            changed = {
                "seed": seed,
                "troll_share": share,
                "nights": config.study_nights,
                "output": name,
                "troll_study": False,
            }
            rows = lived(config.model_copy(update=changed), console).rows
            lasts.append(rows[-1]["liked"])
            within &= all(row["within_cap"] for row in rows[1:])
            shares = [
                max(shares[0], *(r["troll_training"] for r in rows[1:])),
                max(shares[1], *(r["troll_gate"] for r in rows[1:])),
            ]
        pairs.append({"seed": seed, "alone": lasts[0], "troll": lasts[1]})
    table = study_table(pairs) | {"within_cap": within, "largest_training": shares[0], "largest_gate": shares[1]}
    write_json(Path(f"{config.output}_study") / "study.json", table)
    console.print(markdown(table))


def study_table(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean difference with its 95 % interval (Student's t over the seeds), in shares."""
    differences = np.asarray([pair["troll"] - pair["alone"] for pair in pairs])
    half = float(T_975[len(pairs) - 2] * differences.std(ddof=1) / np.sqrt(len(pairs)))
    mean = float(differences.mean())
    return {"pairs": list(pairs), "mean": mean, "low": mean - half, "high": mean + half}


def markdown(table: dict[str, Any]) -> str:
    """The table of a study, as the documents show it."""
    rows = [
        f"| {p['seed']} | {p['alone']:.1%} | {p['troll']:.1%} | {100 * (p['troll'] - p['alone']):+.1f} |"
        for p in table["pairs"]
    ]
    mean, low, high = (100 * table[name] for name in ("mean", "low", "high"))
    return "\n".join(
        [
            "| seed | without the troll | with the troll | difference, points |",
            "|---|---|---|---|",
            *rows,
            f"| mean | | | {mean:+.1f} [{low:+.1f}, {high:+.1f}] |",
            "",
            f"Largest share of the troll: {table['largest_training']:.1%} of a night's training set, {table['largest_gate']:.1%} "
            f"of the gate's weight; within the cap on every night: {'yes' if table['within_cap'] else 'NO'}",
        ]
    )
