"""Plot the metrics.jsonl of a run: the score with its weighted parts, KL, and the scores of its evaluation.json, if any.

Of a run with dialogues (train-policy, or train with an environment): success and reward against dialogues, with the lines of
the handcrafted policy.

python scripts/plot_run.py --run runs/quickstart [--output plot.png]
"""

from functools import partial
from pathlib import Path
from typing import Any

from rlhf_dialog.commands.command_line import check_output
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.config.loading import read_yaml
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import json_or


class PlotRunOptions(Options):
    description = __doc__
    run: Path = option("run folder that contains metrics.jsonl")
    output: Path | None = option("PNG file to write; default: plot.png in the run folder")


def plot_run(options: PlotRunOptions) -> None:
    """Plot the run folder. Raises UserError when the run has no metrics yet, or the plot cannot be written."""
    run, output = options.run, options.output or options.run / "plot.png"
    metrics = run / "metrics.jsonl"
    nothing = UserError(f"--run: '{run}' has no metrics.jsonl with an iteration; name the folder of a run")
    if not metrics.is_file():
        raise nothing
    from rlhf_dialog.evaluation.plot import plot, plot_success
    from rlhf_dialog.evaluation.run_page.verdict import kl_target
    from rlhf_dialog.runs.metrics_file import read_metrics
    from rlhf_dialog.runs.run_reader import check_run

    check_run(run)
    rows = read_metrics(metrics)
    if not rows:
        raise nothing
    check_output("output", output, str(output))
    config = run / "config.yaml"
    if "dialogues" in rows[0] or "environment/success" in rows[0]:
        plot_success(rows, str(run), output)
    else:
        evaluation = json_or(run / "evaluation.json", {}, dict[str, Any])
        target = kl_target(read_yaml(config)) if config.is_file() else None
        plot(rows, target, str(run), output, evaluation)
    print(f"plot: {output}")


main = partial(run_command, PlotRunOptions, plot_run)  # the command line; returns the exit code
