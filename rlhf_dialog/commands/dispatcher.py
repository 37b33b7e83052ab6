"""The command `rlhf-dialog`: the first argument selects a command, and only that one is imported."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import rlhf_dialog
from rlhf_dialog import wings
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.wings import DEVELOP, GROUPS, MEASURE, PUBLISH, START, TEACH, Command


def _entry(module: str, meaning: str, group: str) -> Command:
    """A command of this folder: the `main` of a module, or the function of `module:function`."""
    return Command(f"rlhf_dialog.commands.{module}", meaning, group)


COMMANDS = {  # the one table; a command of a wing has its group there
    "doctor": _entry("doctor", "show this machine and which runs fit", START),
    "train": _entry("train", "train a dialog model with PPO", START),
    "chat": _entry("chat", "talk to a trained agent in the terminal", START),
    "evaluate": _entry(
        "evaluate", "evaluate an agent on held-out prompts, against another agent and baselines", MEASURE
    ),
    "plot-run": _entry("plot_run", "plot the metrics of a run", MEASURE),
    "report": _entry("report", "write the HTML report of a run", MEASURE),
    "audit": _entry("audit", "find bad replies that a reward overrates", MEASURE),
    "train-sft": _entry("supervised:train_sft", "fine-tune a language model on dialogues (supervised)", TEACH),
    "train-intent-classifier": _entry(
        "supervised:train_intent_classifier", "train the dialogue act classifier of the reward", TEACH
    ),
    "train-preference-model": _entry(
        "supervised:train_preference_model", "train a reward model on pairs of replies", TEACH
    ),
    "train-relevance-model": _entry(
        "supervised:train_relevance_model", "train a model that scores how well a reply fits its prompt", TEACH
    ),
    **wings.commands(),
    "export": _entry("export", "export a checkpoint as an agent", PUBLISH),
    "push-to-hub": _entry("push_to_hub", "publish an agent or a reward model on the Hugging Face Hub", PUBLISH),
    "benchmark": _entry("benchmark", "measure the speed and memory of training", DEVELOP),
    "schema": _entry("schema", "print the JSON schema of a YAML for editors", DEVELOP),
    "write-dialogues": _entry("write_dialogues", "write the synthetic dialogues of the quickstart", DEVELOP),
}
LOCAL_RANK = ("--local_rank=", "--local-rank=")  # the DeepSpeed launcher puts it first


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named by the first argument; returns its exit code. `argv` is `sys.argv[1:]` by default."""
    words = list(sys.argv[1:] if argv is None else argv)
    rank = [words.pop(0)] if words and words[0].startswith(LOCAL_RANK) else []
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(usage())
        return 0
    name, *arguments = words
    if name == "--version":
        sys.stdout.write(f"rlhf-dialog {rlhf_dialog.__version__}\n")
        return 0
    if name not in COMMANDS:
        advice = nearest(name, COMMANDS) or f"; choose one of {', '.join(COMMANDS)}"
        sys.stderr.write(f"error: there is no command {name!r}{advice}\n")
        return UserError.exit_code
    sys.argv[0] = f"{_program()} {name}"  # the program name in the help of the command
    module, _, function = COMMANDS[name].module.partition(":")
    return int(getattr(import_module(module), function or "main")([*rank, *arguments]))


def usage() -> str:
    """The list of commands by group, one per line."""
    program = _program()
    end = f"{program} COMMAND --help shows the arguments of a command, {program} --version the version."
    groups: dict[str, dict[str, str]] = {group: {} for group in GROUPS}
    for name, command in COMMANDS.items():
        groups[command.group][name] = command.meaning
    title = "RLHF fine-tuning for generative dialog language models."
    return command_list(title, f"{program} COMMAND ...", groups, end)


def command_list(title: str, call: str, groups: Mapping[str, Mapping[str, str]], end: str) -> str:
    """The help of a program that has commands: its title, how it is called, and a line for each command.

    groups: title of the group -> name -> what the command does; the group without a title has no line for it.
    """
    width = max(len(name) for commands in groups.values() for name in commands) + 2
    lines = [title, "", f"usage: {call}"]
    for group, commands in groups.items():
        lines += ["", f"{group}:"] if group else []
        lines += [f"  {name:<{width}}{meaning}" for name, meaning in commands.items()]
    return "\n".join([*lines, "", end, ""])


def _program() -> str:
    return "python -m rlhf_dialog" if Path(sys.argv[0]).name == "__main__.py" else "rlhf-dialog"
