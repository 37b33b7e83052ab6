"""The command `rlhf-dialog feedback`: its first argument selects what is done with a bot; only that module is imported."""

import sys
from importlib import import_module

from rlhf_dialog.commands.command_line import program
from rlhf_dialog.commands.dispatcher import command_list
from rlhf_dialog.commands.options import run_command
from rlhf_dialog.errors import UserError, nearest

SUBCOMMANDS = {  # name: module with the function `run_NAME`, what the subcommand does
    "init": ("bot", "make a bot folder that begins with an agent"),
    "serve": ("serve", "let people talk to a bot and rate it, in a browser or by an API"),
    "status": ("bot", "show the versions of a bot, and what people said of them"),
    "learn": ("bot", "make a new version from the feedback, and promote it if it passes"),
    "rollback": ("bot", "go back to an earlier champion"),
    "export": ("files", "write the feedback to a file, also in TRL's columns"),
    "import": ("files", "add the feedback of a file, also in TRL's columns"),
    "pull": ("pull", "add the ratings that people gave in Open WebUI"),
    "backup": ("files", "copy the store while the bot is in use"),
    "invite": ("people", "give a person, or a program, a key to the API"),
    "revoke": ("people", "let a person's keys work no more"),
    "people": ("people", "list who was invited"),
    "forget": ("bot", "remove everything that is stored about a person"),
}


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code. `argv` is `sys.argv[1:]` by default."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = sys.argv[0] = "python -m rlhf_dialog.feedback" if sys.argv[0].endswith("__main__.py") else program()
    if not words or words[0] in ("-h", "--help"):
        meanings = {subcommand: meaning for subcommand, (_, meaning) in SUBCOMMANDS.items()}
        title, use = "A bot that learns from what people say of its answers.", f"{name} SUBCOMMAND --run DIR ..."
        end = f"{name} SUBCOMMAND --help shows the arguments of a subcommand."
        sys.stdout.write(command_list(title, use, {"": meanings}, end))
        return 0
    chosen, *arguments = words
    if chosen not in SUBCOMMANDS:
        advice = nearest(chosen, SUBCOMMANDS) or f"; choose one of {', '.join(SUBCOMMANDS)}"
        sys.stderr.write(f"error: there is no subcommand {chosen!r} of feedback{advice}\n")
        return UserError.exit_code
    module, meaning = SUBCOMMANDS[chosen]
    run = getattr(import_module(f"rlhf_dialog.feedback.commands.{module}"), f"run_{chosen}")
    about = f"{meaning[0].upper()}{meaning[1:]}."
    return run_command(run.__annotations__["options"], run, arguments, f"{name} {chosen}", about)
