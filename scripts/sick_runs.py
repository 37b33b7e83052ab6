"""Draw healthy and sick runs for docs/READING_A_RUN.md: short runs of the quickstart, each with one thing wrong.

python scripts/sick_runs.py [--work runs/sick] [--output docs/images]

It needs what `make quickstart` left in runs/, and takes about five minutes. Runs that are finished are not made again.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from rlhf_dialog.commands.command_line import exit_code
from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.plot import plot
from rlhf_dialog.rewards import BaseReward
from rlhf_dialog.runs.metrics_file import read_metrics

SFT = Path("runs/quickstart_sft")
KINDS = {
    "healthy": (),
    "steps_too_large": ("--lr", "1e-2"),
    "without_kl": ("--kl_coef", "0", "--kl_rate", "0", "--lr", "2e-3"),
    "pays_length": ("--reward_class", "{id: WordCount}", "--kl_coef", "0.01", "--lr", "1e-3"),
}


@RewardFactory.register("WordCount")
class WordCount(BaseReward):
    """The number of words: a reward that is easy to please."""

    name = "word_count"

    def __call__(self, dialogues):
        return [len(dialogue.response.split()) / 10 for dialogue in dialogues]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/sick"), help="where the runs are (default: runs/sick)")
    parser.add_argument("--output", type=Path, default=Path("docs/images"), help="folder of the pictures")
    options = parser.parse_args(argv)
    with exit_code(debug=False) as ending:
        draw(options.work, options.output)
    return ending.code


def draw(work: Path, output: Path) -> None:
    """Make the runs that are missing, and draw all. Raises UserError before `make quickstart`."""
    if not SFT.is_dir():
        raise UserError(f"{SFT}: is not there; run `make quickstart` first")
    for name, words in KINDS.items():
        run = work / name
        if not (run / "agent").is_dir():
            train(run, words)
        plot(read_metrics(run / "metrics.jsonl"), None, name.replace("_", " "), output / f"run_{name}.png")
        print(output / f"run_{name}.png")


def train(run: Path, words: tuple[str, ...]) -> None:
    """One run in a process of its own. Raises UserError when it fails."""
    place = ("--run_dir", str(run.parent), "--experiment_name", run.name, "--overwrite", "--max_iterations", "30")
    program = [sys.executable, "-P", "-m", "rlhf_dialog", "train"]
    command = [*program, "--config", "quickstart.yaml", "--register", __file__]
    if subprocess.run([*command, *place, *words]).returncode:
        raise UserError(f"{run}: the run failed; its own message is above")


if __name__ == "__main__":
    sys.exit(main())
