"""Plot the metrics.jsonl of a run: reward and its parts, KL, speed and response length per iteration.

Of a run with dialogues (train-policy, or train with an environment): success and reward against dialogues, with the lines of
the handcrafted policy.

python scripts/plot_run.py --run runs/quickstart [--output plot.png]
"""

import argparse
from pathlib import Path

from rlhf_dialog.commands.command_line import Parser, check_output, exit_code_of, home_path, set_up_logging
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.found_config import number_in
from rlhf_dialog.evaluation.plot import plot
from rlhf_dialog.evaluation.success_plot import of_dialogues, plot_success
from rlhf_dialog.runs.tracking import read_metrics


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=home_path, required=True, help="run folder that contains metrics.jsonl")
    parser.add_argument("--output", type=home_path, help="PNG file to write; default: plot.png in the run folder")
    options = parser.parse_args(argv)
    set_up_logging()
    return exit_code_of(lambda: plot_run(options.run, options.output or options.run / "plot.png"), debug=False)


def plot_run(run: Path, output: Path) -> None:
    """Plot the run folder. Raises UserError when the run has no metrics yet, or `output` cannot be written."""
    metrics = run / "metrics.jsonl"
    rows = read_metrics(metrics) if metrics.is_file() else []
    if not rows:
        raise UserError(f"{metrics}: has no metrics to plot; train first")
    check_output("output", output, str(output))
    config = run / "config.yaml"
    if "dialogues" in rows[0] or "environment/success" in rows[0]:
        plot_success(rows if "dialogues" in rows[0] else of_dialogues(rows), str(run), output)
    else:
        has_target = number_in(config, "kl_rate") != 0  # a fixed coefficient aims for nothing
        plot(rows, number_in(config, "kl_target") if has_target else None, str(run), output)
    print(f"plot: {output}")
