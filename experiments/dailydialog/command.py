"""DailyDialog from a path to a table of results: training, judges, PPO of several seeds, and what it is compared with.

python -m experiments.dailydialog --data_path data/dailydialog --work DIR --size short

Everything is written below --work: a folder for each stage, with its logs, and results.md in the end. The same command goes on
where an earlier one was stopped, however that was. The first stage measures the machine and says how long the others take.
"""

import errno
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from experiments.dailydialog.pretrained import checks
from experiments.dailydialog.pretrained import stages as pretrained_stages
from experiments.dailydialog.pretrained import table as pretrained_table
from experiments.dailydialog.record import forget
from experiments.dailydialog.scene import ESTIMATE, Scene
from experiments.dailydialog.sizes import SIZES, SMOLLM2
from experiments.dailydialog.stages import STAGES, Stage, after, run_stage
from experiments.dailydialog.table import RESULTS, blind_command
from rlhf_dialog.commands.command_line import program
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.data.sources import check_path
from rlhf_dialog.errors import SignalExit, UserError
from rlhf_dialog.runs.lock import lock_folder
from rlhf_dialog.terminal import Console, lasting

DISK = {"short": 3 * 2**30, "full": 8 * 2**30, "tiny": 2**26}  # bytes
DISK |= {"pretrained": 12 * 2**30, "pretrained_full": 14 * 2**30, "pretrained_tiny": 2**27}
ALL_NAMES = tuple(dict.fromkeys(stage.name for stage in (*STAGES, *pretrained_stages.STAGES)))


class DailyDialogOptions(Options):
    description = __doc__
    data_path: Path = option("DailyDialog in its original layout: train/dialogues_train.txt and so on")
    work: Path = option("folder for everything that is written, outside of a checkout's files; made if it is not there")
    size: str = option(
        "short (some hours on two cores), full (all test prompts, more estimators and starts), or tiny (for tests: seconds, of "
        "made-up dialogues); pretrained (the experiment of OpenRL's documentation on SmolLM2-135M, about four hours on two quiet "
        "cores with bfloat16), pretrained_full (100,000 tokens, 1,500 test prompts) or pretrained_tiny; default: short",
        "short",
        choices=tuple(SIZES),
    )
    until: str | None = option("end after this stage", choices=ALL_NAMES)
    only: str | None = option("run this stage alone", choices=ALL_NAMES)
    again: str | None = option(
        "remove this stage with all that were made from it, and begin them again", choices=ALL_NAMES
    )
    fetched: Path = option(
        "folder of `experiments.smollm2 fetch smollm2 minilm`, whose models judge too where they are there (default: fetched)",
        Path("fetched"),
    )
    model: Path | None = option(
        "pretrained sizes: folder of a causal language model with a chat template (default: smollm2 of --fetched)"
    )


def run(options: DailyDialogOptions) -> None:
    """Run the stages. Raises UserError for what cannot work, and for a stage that fails."""
    check(options)
    progress = Progress(Console(highlight=False), stages_of(options.size))
    fetched = options.fetched.absolute() if options.fetched.is_dir() else None
    work = options.work.absolute()
    model = options.model and options.model.absolute()
    scene = Scene(options.data_path.absolute(), work, options.size, fetched, progress.minute, model)
    with lock_folder(work):
        if options.again:
            removed = after(options.again, stages_of(options.size))
            progress.console.print(f"begun again: {', '.join(removed)}")
            forget(work, removed)
        try:
            run_stages(options, scene, progress)
        except (KeyboardInterrupt, SignalExit):
            sys.stderr.write(
                f"\nstopped in the stage {progress.name}; the same command goes on:\n{command_of(options)}\n"
            )
            raise
    if (work / RESULTS).is_file():
        readings = pretrained_table.blind_commands(scene) if scene.size.pretrained else [blind_command(scene)]
        lines = [f"\nthe table: {options.work / RESULTS}", *(f"a blind reading: {reading}" for reading in readings)]
        progress.console.print("\n".join(lines), soft_wrap=True)


def stages_of(size: str) -> tuple[Stage, ...]:
    """The stages of a size, in their order."""
    return pretrained_stages.STAGES if SIZES[size].pretrained else STAGES


def run_stages(options: DailyDialogOptions, scene: Scene, progress: "Progress") -> None:
    """Run what --until and --only name, and say what was estimated after the first stage."""
    for stage in progress.asked(options.until, options.only):
        progress.begin(stage.name, stage.title, scene)
        start = time.monotonic()
        if run_stage(stage, scene):
            progress.console.print("done before, skipped")
        else:
            progress.console.print(f"({lasting(time.monotonic() - start)})")
        if stage.name == ESTIMATE:
            say_estimate(scene, progress.console)


def say_estimate(scene: Scene, console: Console) -> None:
    """One line for each stage with its minutes, and one for all."""
    minutes = scene.plan["minutes"]
    for name, number in minutes.items():
        console.print(f"  {name:<20}{number:8.1f} min")
    console.print(f"  {'all':<20}{sum(minutes.values()):8.1f} min; PPO: {scene.plan['tokens']:,} tokens in each run")


class Progress:
    """Stage, share, time so far and time left."""

    def __init__(self, console: Console, stages: tuple[Stage, ...] = STAGES) -> None:
        self.console, self.start, self.name, self.number = console, time.monotonic(), "", 0
        self.stages, self.names = stages, [stage.name for stage in stages]
        self.minutes: dict[str, float] = {}

    def asked(self, until: str | None, only: str | None) -> list[Stage]:
        """The stages up to one, or one alone."""
        last = self.names.index(until) + 1 if until else len(self.names)
        return [stage for stage in self.stages[:last] if only in (None, stage.name)]

    def begin(self, name: str, title: str, scene: Scene) -> None:
        """Say which stage begins."""
        self.name, self.number, self.began = name, self.names.index(name) + 1, time.monotonic()
        if name != ESTIMATE:
            self.minutes = scene.plan["minutes"]
        self.console.print(
            f"\n[bold]{self.number}/{len(self.names)} {name}: {title}[/bold]{self.left(0.0)}", soft_wrap=True
        )

    def minute(self, share: float) -> None:
        """Say how far the stage is."""
        elapsed = lasting(time.monotonic() - self.began)
        self.console.print(
            f"{self.number}/{len(self.names)} {self.name}: {share:.0%}, {elapsed} elapsed{self.left(share)}"
        )

    def left(self, share: float) -> str:
        """What the rest takes, by the estimates, and by how the stage at work compares with its own."""
        if not self.minutes:
            return ""
        here = 60 * self.minutes.get(self.name, 0.0)
        elapsed = time.monotonic() - self.began
        slower = max(elapsed / (share * here), 1.0) if share > 0.1 and here else 1.0
        later = sum(60 * self.minutes.get(name, 0.0) for name in self.names[self.number :])
        return f", about {lasting(here * (1 - share) * slower + later)} left"


def check(options: DailyDialogOptions) -> None:
    """Raises UserError for data that is not there, a folder that cannot be used, or too little room on the disk."""
    if not options.data_path.is_dir():
        raise UserError(
            f"--data_path: '{options.data_path}' is not a folder; name the one with train/dialogues_train.txt of DailyDialog"
        )
    check_path(str(options.data_path))
    for split in ("train", "validation", "test"):
        if not (options.data_path / split / f"dialogues_{split}.txt").is_file():
            raise UserError(
                f"--data_path: '{options.data_path}' has no {split}/dialogues_{split}.txt; name DailyDialog's original folder"
            )
    names = [stage.name for stage in stages_of(options.size)]
    for flag, name in (("until", options.until), ("only", options.only), ("again", options.again)):
        if name and name not in names:
            raise UserError(
                f"--{flag}: the size {options.size} has no stage '{name}'; its stages are {', '.join(names)}"
            )
    if options.only and options.until:
        raise UserError("--only runs one stage, --until all up to one; give one of them")
    above = next(parent for parent in (options.work.absolute(), *options.work.absolute().parents) if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise UserError(f"--work: '{options.work}' cannot be written: {os.strerror(errno.EACCES)}; name another folder")
    if is_tracked(options.work.absolute(), above):
        raise UserError(
            f"--work: '{options.work}' is in a git checkout that would track it; name a folder outside of it, since what is "
            "written holds text of the data"
        )
    free = shutil.disk_usage(above).free
    if free < DISK[options.size]:
        raise UserError(
            f"--work: '{options.work}' has {free / 2**30:.1f} GiB free, and a {options.size} run needs "
            f"{DISK[options.size] / 2**30:.1f}; make room, or name another disk"
        )
    if SIZES[options.size].pretrained:
        checks.check(options.data_path, options.fetched, options.model)
    elif options.model:
        raise UserError(f"--model: is for the pretrained sizes, and --size is {options.size}; leave it out")
    if options.size == "full" and not (options.fetched / SMOLLM2).is_dir():
        raise UserError(
            f"--fetched: '{options.fetched}' has no {SMOLLM2}, from which a full run starts too; fetch it: "
            f"python -m experiments.smollm2 fetch smollm2 minilm --output {options.fetched}"
        )


def is_tracked(work: Path, above: Path) -> bool:
    """Whether the folder lies in a git checkout that does not ignore it; `above`: the nearest folder that is there."""
    git = shutil.which("git")
    if git is None:
        return any((parent / ".git").exists() for parent in (work, *work.parents))
    inside = subprocess.run([git, "rev-parse", "--is-inside-work-tree"], cwd=above, capture_output=True, text=True)
    if inside.stdout.strip() != "true":
        return False
    return (
        subprocess.run([git, "check-ignore", "-q", f"{work}/log.txt"], cwd=above, capture_output=True).returncode == 1
    )


def command_of(options: DailyDialogOptions) -> str:
    """The command that goes on, without --again."""
    words = ["--data_path", options.data_path, "--work", options.work, "--size", options.size]
    words += ["--until", options.until] if options.until else []
    words += ["--only", options.only] if options.only else []
    words += ["--fetched", options.fetched, *(["--model", options.model] if options.model else [])]
    return " ".join([program(), *map(str, words)])


main = partial(run_command, DailyDialogOptions, run)  # the command line; returns the exit code
