"""DailyDialog from a path to a table of results: training, judges, PPO of several seeds, and what it is compared with.

python -m experiments.dailydialog --data_path data/dailydialog --work DIR --size short

Everything is written below --work: a folder for each stage, with its logs, and results.md in the end. A stage whose result is
there is not made again, so the same command goes on where an earlier one was stopped, however that was.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from experiments.dailydialog import measuring, table, training
from experiments.dailydialog.pretrained import checks, choosing
from experiments.dailydialog.pretrained import measuring as pretrained_measuring
from experiments.dailydialog.pretrained import table as pretrained_table
from experiments.dailydialog.pretrained import training as pretrained_training
from experiments.dailydialog.sizes import SIZES, SMOLLM2
from experiments.dailydialog.work import Work
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.data.sources import check_path
from rlhf_dialog.errors import SignalExit, UserError
from rlhf_dialog.runs.lock import lock_folder
from rlhf_dialog.terminal import lasting

Stage = tuple[str, str, Callable[[Work], None]]


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
    fetched: Path = option(
        "folder of `experiments.smollm2 fetch smollm2 minilm`, whose models judge too where they are there (default: fetched)",
        Path("fetched"),
    )
    model: Path | None = option(
        "pretrained sizes: folder of a causal language model with a chat template (default: smollm2 of --fetched)"
    )


def supervised(name: str, title: str) -> Stage:
    return name, title, partial(training.train_supervised, stage=name)


STAGES: tuple[Stage, ...] = (
    ("sft", "supervised fine-tuning of a small GPT-2 from scratch", training.train_sft),
    supervised("relevance", "the relevance model of the reward"),
    supervised("relevance_order", "the reward's second relevance model, which knows the order of words"),
    supervised("judge_convolution", "a judge of relevance: another architecture, the other half of the dialogues"),
    supervised("judge_bag", "a second judge of relevance: another seed, the other half of the dialogues"),
    supervised("act_judge", "a judge of acts"),
    ("audit", "look for holes of the reward", training.audit_reward),
    ("ppo", "PPO from the SFT model, several seeds and estimators", training.train_ppo),
    ("best_of_4", "what PPO's tokens are worth as draws: SFT on the best of four", training.train_on_best),
    ("dpo", "DPO on the best and the worst of the same draws", training.train_dpo),
    ("validation", "measure on validation; chosen.json says what the test split is read for", measuring.validate),
    ("test", "measure on test", measuring.test),
    ("table", "the table of results", table.write),
)
PRETRAINED_STAGES: tuple[Stage, ...] = (
    ("sft", "supervised fine-tuning of all weights of the chat model", pretrained_training.train_sft),
    supervised("intent", "the act classifier of the reward: MiniLM, on one half of the dialogues"),
    supervised("next_act", "the act that is expected next, from the prompt alone: MiniLM, on the same half"),
    supervised("act_judge", "a judge of acts: a BERT from scratch, on the other half"),
    supervised("act_judge_minilm", "a second judge of acts: MiniLM, on the other half"),
    ("settings", "short runs of PPO with each of the settings, chosen on validation", choosing.choose),
    ("ppo", "PPO: rloo with the expected intent, gae as in OpenRL's documentation", pretrained_training.train_ppo),
    ("speed", "our benchmark with the settings of OpenRL's documentation", pretrained_training.benchmark),
    (
        "validation",
        "measure on validation; chosen.json says what the test split is read for",
        pretrained_measuring.validate,
    ),
    ("test", "measure on test", pretrained_measuring.test),
    ("leak", "has the start seen the test split before?", pretrained_measuring.find_leaks),
    ("chat", "lines of other people, answered by each model", pretrained_measuring.chat),
    ("table", "the tables of results", pretrained_table.write),
)


def run(options: DailyDialogOptions) -> None:
    """Run the stages. Raises UserError for what cannot work, and for a stage that fails."""
    check(options)
    fetched = options.fetched.absolute() if options.fetched.is_dir() else None
    model = options.model and options.model.absolute()
    work = Work(options.data_path.absolute(), options.work.absolute(), options.size, fetched, model)
    stages = PRETRAINED_STAGES if work.size.pretrained else STAGES
    with lock_folder(work.root):
        for number, (name, title, make) in enumerate(stages, start=1):
            print(f"\n{number}/{len(stages)} {name}: {title}", flush=True)
            began = time.monotonic()
            try:
                make(work)
            except (KeyboardInterrupt, SignalExit):
                sys.stderr.write(f"\nstopped in the stage {name}; the same command goes on\n")
                raise
            print(f"  {lasting(time.monotonic() - began)}", flush=True)
    readings = pretrained_table.blind_commands(work) if work.size.pretrained else [table.blind_command(work)]
    print("\n".join([f"\nthe table: {options.work / table.RESULTS}", *(f"a blind reading: {one}" for one in readings)]))


def check(options: DailyDialogOptions) -> None:
    """Raises UserError for data or models that are not there, and for a folder that git would track."""
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
    if is_tracked(options.work.absolute()):
        raise UserError(
            f"--work: '{options.work}' is in a git checkout that would track it; name a folder outside of it, since what is "
            "written holds text of the data"
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


def is_tracked(work: Path) -> bool:
    """Whether the folder lies in a git checkout that does not ignore it."""
    above = next(parent for parent in (work, *work.parents) if parent.is_dir())
    git = shutil.which("git")
    if git is None:
        return any((parent / ".git").exists() for parent in (work, *work.parents))
    inside = subprocess.run([git, "rev-parse", "--is-inside-work-tree"], cwd=above, capture_output=True, text=True)
    if inside.stdout.strip() != "true":
        return False
    return (
        subprocess.run([git, "check-ignore", "-q", f"{work}/log.txt"], cwd=above, capture_output=True).returncode == 1
    )


main = partial(run_command, DailyDialogOptions, run)  # the command line; returns the exit code
