"""Run the whole pipeline offline, on a small model and synthetic data:

exchanges -> supervised model -> act classifier -> preference model -> PPO -> comparison before and after -> plot.

Guests talk to the receptionist of a made-up hotel. The supervised model learns from receptionists of whose replies six of ten
miss the point: they begin like attentive ones and are about the same things, but answer another question. PPO starts from it;
its reward is the act of an attentive reply, METEOR with it, its length, and what a preference model has learned from pairs.

Each stage is one command that you can also run yourself. A stage is skipped if its command, code, configuration and inputs
are unchanged since its last run.
"""

import hashlib
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from shlex import quote

from pydantic import BaseModel
from rich.markup import escape
from rich.table import Table

import rlhf_dialog
from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.commands.command_line import check_seed
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.config.loading import shipped_folder
from rlhf_dialog.json_files import json_or, read_json
from rlhf_dialog.terminal import Console, lasting

PACKAGE = Path(rlhf_dialog.__file__).parent
RUN = Path("runs/quickstart")
CHECK = Path("scripts/check_quickstart.py")


class Stamp(BaseModel):
    """The file that a stage leaves when it has ended."""

    fingerprint: str
    seconds: float


class Sample(BaseModel):
    """A held-out dialogue in the run's samples.json."""

    last_turn: str
    before: str
    after: str
    reference: str


@dataclass(frozen=True)
class Stage:
    """One command of the pipeline: its title, its inputs besides the code, and its output."""

    title: str
    command: str
    inputs: tuple[Path, ...]
    output: Path
    clear: bool = True  # remove the old output first
    budget: int = 3  # seconds on two quiet cores
    seeded: bool = True  # takes --seed

    @property
    def stamp(self) -> Path:
        """The file with what the last run of this stage had as input, and its seconds."""
        return Path("runs/.stamps") / f"{hashlib.sha256(self.title.encode()).hexdigest()[:12]}.json"

    def with_seed(self, seed: int) -> "Stage":
        return replace(self, command=f"{self.command} --seed {seed}") if self.seeded and seed else self


DATA, CARELESS, PAIRS = (Path(f"runs/quickstart_{name}") for name in ("data", "careless", "pairs"))
SFT, INTENT, PREFERENCE = (Path(f"runs/quickstart_{name}") for name in ("sft", "intent", "preference"))


def write_stage(title: str, output: Path, options: str = "", budget: int = 3) -> Stage:
    """A stage that writes 16,000 exchanges."""
    command = f"-m rlhf_dialog write-dialogues --output {output} --num_dialogues 16000{options}"
    return Stage(title, command, (), output, budget=budget)


def supervised_stage(title: str, command: str, kind: str, output: Path, budget: int, *inputs: Path) -> Stage:
    """A stage that trains a model by configs/KIND_quickstart.yaml."""
    config = f"{kind}_quickstart.yaml"
    return Stage(
        title, f"-m rlhf_dialog {command} --config {config}", (Path("configs") / config, *inputs), output, budget=budget
    )


STAGES = (
    write_stage("write what guests say and an attentive receptionist answers", DATA),
    write_stage("the same guests at a careless desk: most replies miss the point", CARELESS, " --careless 0.6"),
    write_stage("pairs of replies, of which one is better", PAIRS, " --pairs 2000", 10),
    supervised_stage("supervised fine-tuning of a small Llama from scratch", "train-sft", "sft", SFT, 112, CARELESS),
    supervised_stage(
        "train the act classifier of the reward", "train-intent-classifier", "intent", INTENT, 15, CARELESS
    ),
    supervised_stage(
        "train the preference model of the reward", "train-preference-model", "preference", PREFERENCE, 18, PAIRS, SFT
    ),
    Stage(
        "PPO",
        "-m rlhf_dialog train --config quickstart.yaml",
        (Path("configs/quickstart.yaml"), DATA, SFT, INTENT, PREFERENCE),
        RUN,
        budget=106,
    ),
    Stage(
        "compare before and after on held-out prompts",
        f"-m rlhf_dialog evaluate --agent {RUN}/agent --baseline {SFT} --config quickstart_score.yaml --max_prompts 400 "
        f"--output {RUN}/evaluation.json --samples {RUN}/samples.json --replies {RUN}/replies.jsonl",
        (Path("configs/quickstart_score.yaml"), RUN / "agent", SFT, INTENT, DATA),
        RUN / "evaluation.json",
        clear=False,
        budget=24,
    ),
    Stage(
        "plot",
        f"-m rlhf_dialog plot-run --run {RUN}",
        (RUN / "metrics.jsonl",),
        RUN / "plot.png",
        budget=9,
        clear=False,
        seeded=False,
    ),
)


class QuickstartOptions(Options):
    description = __doc__
    seed: int = option("seed of every stage (default: 0)", 0, metavar="N")
    folder: Path | None = option(
        "where the stages run and write runs/; default: the checkout of scripts/quickstart.py, else the working folder"
    )


def main(argv: list[str] | None = None, folder: Path = Path()) -> int:
    """The command line; `folder` is the default of --folder. Returns the exit code."""
    return run_command(QuickstartOptions, lambda options: run(options.folder or folder, options.seed), argv)


def run(folder: Path, seed: int = 0) -> int:
    """Run the stages in `folder`; returns the exit code."""
    check_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    start = time.perf_counter()
    for number, stage in enumerate((stage.with_seed(seed) for stage in STAGES), 1):
        left = lasting(seconds_left(number - 1, time.perf_counter() - start))
        console.print(
            f"\n[bold]{number}/{len(STAGES)} {stage.title}[/bold], about {left} left\n$ python {stage.command}"
        )
        code = run_stage(stage, folder, console)
        if code:
            console.print(f"stage {number} ended with exit code {code}")
            return code
    show_samples(folder, console)
    write_page(folder, console)
    seconds = time.perf_counter() - start
    console.print(
        f"\nfinished in {seconds:.0f} s. Everything is in {folder / RUN}; the plot is {folder / RUN}/plot.png"
    )
    python = Path(sys.executable)
    shown = quote(str(python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python))
    if (folder / CHECK).is_file():
        console.print(f"check the targets:  {shown} {CHECK}")
    console.print(f"talk to it:         {shown} -m rlhf_dialog chat --agent {quote(str(folder / RUN / 'agent'))}")
    return 0


def write_page(folder: Path, console: Console) -> None:
    """Write the page about the run in a process of its own, and say where it is; the quickstart does not depend on it."""
    with suppress(OSError):
        command = [sys.executable, "-P", "-m", "rlhf_dialog", "report", str(RUN)]
        if subprocess.run(command, cwd=folder, capture_output=True).returncode == 0:
            console.print(f"\nis the curve right? open {folder / RUN}/report.html", soft_wrap=True)


def seconds_left(done: int, seconds: float) -> float:
    """What the other stages take when this number is done after these seconds: by their budgets, on a machine as fast as so far.

    Stages that were skipped took no time, so that the machine counts as no faster than the budgets say.
    """
    before, after = (sum(stage.budget for stage in some) for some in (STAGES[:done], STAGES[done:]))
    return after * max(1.0, seconds / before if before else 1.0)


def run_stage(stage: Stage, folder: Path, console: Console) -> int:
    """Run the command in `folder` unless its stamp shows that nothing has changed; returns the exit code."""
    output = folder / stage.output
    stamp = folder / stage.stamp
    kept = json_or(stamp, {}, Stamp)
    if output.exists() and kept.get("fingerprint") == compute_fingerprint(stage, folder):
        console.print("unchanged, skipped")
        return 0
    if stage.clear and output.exists():
        shutil.rmtree(output)
    start = time.perf_counter()
    code = subprocess.run([sys.executable, "-P", *stage.command.split()], cwd=folder).returncode
    if code == 0:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        seconds = time.perf_counter() - start
        write_json(stamp, {"fingerprint": compute_fingerprint(stage, folder), "seconds": seconds})
        console.print(f"({seconds:.0f} s)")
    return code


def read_stage_seconds(folder: Path) -> list[tuple[str, float, int]]:
    """Title, seconds and budget in seconds of each stage that was run in `folder`."""
    stamps = [(stage, folder / stage.stamp) for stage in STAGES]
    kept = [(stage, json_or(stamp, {}, Stamp)) for stage, stamp in stamps]
    return [(stage.title, stamp["seconds"], stage.budget) for stage, stamp in kept if stamp]


def compute_fingerprint(stage: Stage, folder: Path) -> str:
    """A hash of the command, the code with its grammar, the inputs, and the versions that compute.

    A configuration that is not in the folder is the one that comes with the program.
    """
    digest = hashlib.sha256(f"{stage.command} {version('torch')} {version('transformers')}".encode())
    script = Path(stage.command.split()[0])
    for path in (folder / script, PACKAGE, *(folder / path for path in stage.inputs)):
        source = path if path.exists() else shipped_folder("configs") / path.name
        for file in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if file.is_file() and "__pycache__" not in file.parts:
                name = f"{source.name}/{file.relative_to(source)}"
                digest.update(f"{name}:{hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()


def show_samples(folder: Path, console: Console) -> None:
    """Print three held-out dialogues with the replies before and after training."""
    table = Table(title="the same held-out prompts before and after", title_justify="left", show_lines=True)
    for column in ("last turn", "before PPO", "after PPO", "a person's reply"):
        table.add_column(column, overflow="fold", ratio=1)
    path = folder / RUN / "samples.json"
    for sample in read_json(path, end=f"; remove {folder / RUN} and begin again", shape=list[Sample])[:3]:
        table.add_row(*(escape(sample[key]) for key in ("last_turn", "before", "after", "reference")))
    console.print(table)
