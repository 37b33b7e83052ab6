"""Run the whole pipeline offline, on a small model and synthetic data:  python scripts/quickstart.py [--seed N]

exchanges -> supervised model -> act classifier -> preference model -> PPO -> comparison before and after -> plot and report.

docs/QUICKSTART.md describes the data. Each stage is one command that you can also run yourself. Stages that do not need each
other run side by side. A stage is skipped if its command, code, configuration and inputs are unchanged since its last run.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from multiprocessing.process import BaseProcess
from pathlib import Path

try:
    import rlhf_dialog
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

from rich.markup import escape
from rich.table import Table

from rlhf_dialog.commands.command_line import check_seed, exit_code, exit_on_sigterm
from rlhf_dialog.config.loading import shipped_folder
from rlhf_dialog.terminal import Console

PACKAGE = Path(rlhf_dialog.__file__).parent
RUN = Path("runs/quickstart")
DATA, CARELESS, PAIRS = (Path(f"runs/quickstart_{name}") for name in ("data", "careless", "pairs"))
SFT, INTENT, PREFERENCE = (Path(f"runs/quickstart_{name}") for name in ("sft", "intent", "preference"))


@dataclass(frozen=True)
class Stage:
    """One command of the pipeline: its title, its inputs besides the code, and its output."""

    title: str
    command: str
    inputs: tuple[Path, ...]
    output: Path
    clear: bool = True  # remove the old output first
    seeded: bool = True  # takes --seed

    @property
    def stamp(self) -> Path:
        """The file with the fingerprint of the last run of this stage."""
        return Path("runs/.stamps") / hashlib.sha256(self.title.encode()).hexdigest()[:12]

    def with_seed(self, seed: int) -> "Stage":
        return replace(self, command=f"{self.command} --seed {seed}") if self.seeded and seed else self


WRITE = "-m rlhf_dialog write-dialogues --num_dialogues 16000 --output"
CONFIGS = {kind: Path(f"configs/{kind}_quickstart.yaml") for kind in ("sft", "intent", "preference")}
SCORE = Path("configs/quickstart_score.yaml")
ROUNDS = (  # the stages of a round run side by side
    (
        Stage("pairs of replies, of which one is better", f"{WRITE} {PAIRS} --pairs 2000", (), PAIRS),
        Stage("write what guests say and an attentive receptionist answers", f"{WRITE} {DATA}", (), DATA),
        Stage(
            "the same guests at a careless desk: most replies miss the point",
            f"{WRITE} {CARELESS} --careless 0.6",
            (),
            CARELESS,
        ),
    ),
    (
        Stage(
            "supervised fine-tuning of a small Llama from scratch",
            "-m rlhf_dialog train-sft --config sft_quickstart.yaml",
            (CONFIGS["sft"], CARELESS),
            SFT,
        ),
        Stage(
            "train the act classifier of the reward",
            "-m rlhf_dialog train-intent-classifier --config intent_quickstart.yaml",
            (CONFIGS["intent"], CARELESS),
            INTENT,
        ),
    ),
    (
        Stage(
            "train the preference model of the reward",
            "-m rlhf_dialog train-preference-model --config preference_quickstart.yaml",
            (CONFIGS["preference"], PAIRS, SFT),
            PREFERENCE,
        ),
    ),
    (
        Stage(
            "PPO",
            "-m rlhf_dialog train --config quickstart.yaml",
            (Path("configs/quickstart.yaml"), DATA, SFT, INTENT, PREFERENCE),
            RUN,
        ),
    ),
    (
        Stage(
            "compare before and after on held-out prompts",
            f"-m rlhf_dialog evaluate --agent {RUN}/agent --baseline {SFT} --config {SCORE.name} --max_prompts 400 "
            f"--output {RUN}/evaluation.json --replies {RUN}/replies.jsonl",
            (SCORE, RUN / "agent", SFT, INTENT, DATA),
            RUN / "evaluation.json",
            clear=False,
        ),
    ),
    (
        Stage(
            "report with the comparison",
            f"-m rlhf_dialog report {RUN}",
            (RUN / "metrics.jsonl", RUN / "evaluation.json", RUN / "replies.jsonl"),
            RUN / "report.html",
            clear=False,
            seeded=False,
        ),
        Stage(
            "plot",
            f"-m rlhf_dialog plot-run --run {RUN}",
            (RUN / "metrics.jsonl",),
            RUN / "plot.png",
            clear=False,
            seeded=False,
        ),
    ),
)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of every stage (default: 0)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(__file__).resolve().parents[1],
        help="where the stages run and write runs/; default: this checkout",
    )
    options = parser.parse_args(argv)
    exit_on_sigterm()
    with exit_code(debug=False) as ending:
        check_seed(options.seed)
        ending.code = run(options.folder, options.seed)
    return ending.code


def run(folder: Path, seed: int = 0) -> int:
    """Run the stages in `folder`; returns the exit code of the first that fails, or 0."""
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    start = time.perf_counter()
    for stages in ROUNDS:
        if code := run_stages([stage.with_seed(seed) for stage in stages], folder, console):
            return code
    console.print(samples_table(folder / RUN / "replies.jsonl"))
    console.print(f"\nfinished in {time.perf_counter() - start:.0f} s. Everything is in {folder / RUN}")
    console.print(f"look at the curves: {folder / RUN}/report.html, {folder / RUN}/plot.png", soft_wrap=True)
    console.print("check the targets:  python scripts/check_quickstart.py")
    console.print(f"talk to it:         python chat.py --agent {folder / RUN}/agent", soft_wrap=True)
    return 0


def run_stages(stages: Sequence[Stage], folder: Path, console: Console) -> int:
    """Run side by side those that have changed; returns the exit code of the first that fails, or 0.

    The first one prints as it runs, and what the others print follows. Stages side by side compute with one thread each.
    """
    changed = [stage for stage in stages if not is_unchanged(stage, folder)]
    for stage in stages:
        note = "" if stage in changed else "  (unchanged, skipped)"
        console.print(f"\n[bold]{stage.title}[/bold]{note}\n$ python {stage.command}")
    if not changed:
        return 0
    load_libraries()
    start = time.perf_counter()
    with ExitStack() as stack:
        printed = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = [None, *(printed / str(number) for number in range(1, len(changed)))]
        processes = []
        for stage, file in zip(changed, files, strict=True):
            if stage.clear and (folder / stage.output).exists():
                shutil.rmtree(folder / stage.output)
            processes.append(PROCESSES.Process(target=call, args=(stage, folder, file, len(changed) > 1)))
            processes[-1].start()
            stack.callback(end, processes[-1])
        for stage, file, process in zip(changed, files, processes, strict=True):
            process.join()
            if file:
                console.out(f"\n{stage.title}:\n{file.read_text(encoding='utf-8')}", end="", highlight=False)
            if process.exitcode:
                console.print(f"{stage.title}: ended with exit code {process.exitcode}")
            else:
                (folder / stage.stamp).parent.mkdir(parents=True, exist_ok=True)
                (folder / stage.stamp).write_text(compute_fingerprint(stage, folder))
    console.print(f"({time.perf_counter() - start:.0f} s)")
    return next((process.exitcode for process in processes if process.exitcode), 0)


PROCESSES = multiprocessing.get_context("fork") if sys.platform == "linux" else multiprocessing.get_context("spawn")


def load_libraries() -> None:
    """Import what the stages need once, before the first is forked: each would import it for several seconds."""
    for name in ("runs.agent", "training.supervised.sft", "training.supervised.preference_model", "evaluation.plot"):
        import_module(f"rlhf_dialog.{name}")


def call(stage: Stage, folder: Path, file: Path | None, side_by_side: bool) -> None:
    """In a process of its own: run the command in `folder`, with what it prints in the file, and end with its exit code."""
    import torch

    os.chdir(folder)
    if file:
        written = file.open("w", encoding="utf-8")
        os.dup2(written.fileno(), 1)
        os.dup2(written.fileno(), 2)
    if side_by_side:
        torch.set_num_threads(1)
    _, module, *sys.argv[1:] = stage.command.split()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def end(process: BaseProcess) -> None:
    """Wait for a process that has ended, or end it: a stage that is told to end keeps what it has finished."""
    process.terminate()
    process.join()


def is_unchanged(stage: Stage, folder: Path) -> bool:
    """Whether the output is there, and the stamp has the fingerprint of today."""
    stamp = folder / stage.stamp
    return (
        (folder / stage.output).exists() and stamp.is_file() and stamp.read_text() == compute_fingerprint(stage, folder)
    )


def compute_fingerprint(stage: Stage, folder: Path) -> str:
    """A hash of the command, the code with its grammar, the inputs, and the versions that compute.

    A configuration that is not in the folder is the one that comes with the program.
    """
    digest = hashlib.sha256(f"{stage.command} {version('torch')} {version('transformers')}".encode())
    for path in (PACKAGE, *(folder / path for path in stage.inputs)):
        source = path if path.exists() else shipped_folder("configs") / path.name
        for file in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if file.is_file() and "__pycache__" not in file.parts:
                name = f"{source.name}/{file.relative_to(source)}"
                digest.update(f"{name}:{hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()


def samples_table(path: Path) -> Table:
    """Three evenly spaced rows of a file of `evaluate --replies`, with the replies before and after training."""
    table = Table(title="the same held-out prompts before and after", title_justify="left", show_lines=True)
    for column in ("last turn", "before PPO", "after PPO", "a person's reply"):
        table.add_column(column, overflow="fold", ratio=1)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in (rows[len(rows) * k // 4] for k in (1, 2, 3)):
        replies = [row["replies"][name]["response"] for name in ("before", "after")]
        table.add_row(*map(escape, (row["prompt"][-1], *replies, row["references"][0])))
    return table


if __name__ == "__main__":
    sys.exit(main())
