"""The command `rlhf-dialog`: the first argument selects a command, and only that one is imported."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import rlhf_dialog
from rlhf_dialog import wings
from rlhf_dialog.errors import UserError, nearest

COMMANDS = {  # name: module with `main(argv) -> exit code`, what the command does
    "train": ("rlhf_dialog.commands.train", "train a dialog model with PPO"),
    "chat": ("rlhf_dialog.commands.chat", "talk to a trained agent in the terminal"),
    "evaluate": (
        "rlhf_dialog.commands.evaluate",
        "evaluate an agent on held-out prompts, against another agent and baselines",
    ),
    "train-sft": ("rlhf_dialog.commands.supervised.sft", "fine-tune a language model on dialogues (supervised)"),
    "train-intent-classifier": (
        "rlhf_dialog.commands.supervised.intent_classifier",
        "train the dialogue act classifier of the reward",
    ),
    "train-preference-model": (
        "rlhf_dialog.commands.supervised.preference_model",
        "train a reward model on pairs of replies, and report what it is worth",
    ),
    "benchmark": ("rlhf_dialog.commands.benchmark", "measure the speed and memory of training"),
    "quickstart": (
        "rlhf_dialog.commands.quickstart",
        "run the whole pipeline offline on a small model and synthetic dialogues",
    ),
    "write-dialogues": ("rlhf_dialog.commands.write_dialogues", "write the synthetic dialogues of the quickstart"),
    "fetch": (
        "rlhf_dialog.commands.fetch",
        "fetch a chat model, an encoder and conversations of people, without a hub",
    ),
    "plot-run": ("rlhf_dialog.commands.plot_run", "plot the metrics of a run"),
    "report": ("rlhf_dialog.commands.report", "make a page about a run: is its curve right, curves, replies"),
    "export": ("rlhf_dialog.commands.export", "export a checkpoint as an agent, also of an interrupted run"),
    "push-to-hub": ("rlhf_dialog.commands.push_to_hub", "publish an agent or a reward model on the Hugging Face Hub"),
    "train-relevance-model": (
        "rlhf_dialog.commands.supervised.relevance_model",
        "train the model of a reward that judges which reply fits its prompt",
    ),
    **wings.commands(),
}
LOCAL_RANK = ("--local_rank=", "--local-rank=")  # the DeepSpeed launcher puts it first


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named by the first argument; returns its exit code. `argv` is `sys.argv[1:]` by default."""
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
        advice = nearest(name, COMMANDS) or f"; choose one of {', '.join(COMMANDS)}"
        sys.stderr.write(f"error: there is no command {name!r}{advice}\n")
        return UserError.exit_code
    sys.argv[0] = f"{_program()} {name}"  # the program name in the help of the command
    return int(import_module(COMMANDS[name][0]).main([*rank, *rest]))


def usage() -> str:
    """The list of commands, one per line."""
    program = _program()
    end = f"{program} COMMAND --help shows the arguments of a command, {program} --version the version."
    return command_list(
        "RLHF fine-tuning for generative dialog language models.", f"{program} COMMAND ...", COMMANDS, end
    )


def command_list(title: str, call: str, commands: Mapping[str, tuple[str, str]], end: str) -> str:
    """The help of a program that has commands: its title, how it is called, and a line for each command."""
    width = max(map(len, commands)) + 2
    lines = [f"  {name:<{width}}{meaning}" for name, (_, meaning) in commands.items()]
    return "\n".join([title, "", f"usage: {call}", *lines, "", end, ""])


def _program() -> str:
    return "python -m rlhf_dialog" if Path(sys.argv[0]).name == "__main__.py" else "rlhf-dialog"
