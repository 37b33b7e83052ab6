"""The command `rlhf-dialog`: its first word names a command, which is imported only then."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import rlhf_dialog
from rlhf_dialog.errors import UserError, nearest

COMMANDS = {  # name: module with `main(argv) -> exit code`, what the command does
    "train": ("rlhf_dialog.commands.train", "train a dialog model with PPO"),
    "chat": ("rlhf_dialog.commands.chat", "talk to a trained agent in the terminal"),
    "evaluate": (
        "rlhf_dialog.commands.evaluate",
        "measure an agent on held-out prompts, beside another one and baselines",
    ),
    "train-sft": ("rlhf_dialog.commands.train_sft", "fine-tune a language model on dialogues (supervised)"),
    "train-intent-classifier": (
        "rlhf_dialog.commands.train_intent_classifier",
        "train the classifier of dialogue acts that the reward asks",
    ),
    "benchmark": ("rlhf_dialog.commands.benchmark", "measure the speed and the memory of training"),
    "quickstart": (
        "rlhf_dialog.commands.quickstart",
        "run the whole pipeline on a small model and made-up dialogues, offline",
    ),
    "write-dialogues": ("rlhf_dialog.commands.write_dialogues", "write made-up dialogues, the data of the quickstart"),
    "plot-run": ("rlhf_dialog.commands.plot_run", "draw the metrics of a run"),
    "export": ("rlhf_dialog.commands.export", "make an agent of a checkpoint, also of a run that was interrupted"),
}
LOCAL_RANK = ("--local_rank=", "--local-rank=")  # the launcher of DeepSpeed puts it before everything else


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first word names; returns its exit code. `argv` is `sys.argv[1:]` by default."""
    words = list(sys.argv[1:] if argv is None else argv)
    rank = [words.pop(0)] if words and words[0].startswith(LOCAL_RANK) else []
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(usage())
        return 0
    name, *rest = words
    if name == "--version":
        sys.stdout.write(f"rlhf-dialog {rlhf_dialog.__version__}\n")
        return 0
    if name not in COMMANDS:
        advice = nearest(name, COMMANDS) or f"; it is one of {', '.join(COMMANDS)}"
        sys.stderr.write(f"error: there is no command '{name}'{advice}\n")
        return UserError.exit_code
    sys.argv[0] = f"{_program()} {name}"  # what the command calls itself in its help
    return int(import_module(COMMANDS[name][0]).main([*rank, *rest]))


def usage() -> str:
    """The commands, one line each."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{meaning}" for name, (_, meaning) in COMMANDS.items()]
    return "\n".join(
        [
            "RLHF fine-tuning for generative dialog language models.",
            "",
            f"usage: {_program()} COMMAND ...",
            *lines,
            "",
            f"{_program()} COMMAND --help shows the arguments of a command, {_program()} --version the version.",
            "",
        ]
    )


def _program() -> str:
    return "python -m rlhf_dialog" if Path(sys.argv[0]).name == "__main__.py" else "rlhf-dialog"
