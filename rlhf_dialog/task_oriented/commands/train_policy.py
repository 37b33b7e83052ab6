"""Train a dialogue policy that chooses acts. Metrics, checkpoints and the agent go to <run_dir>/<experiment_name>."""

import logging
import sys
from pathlib import Path
from typing import Any, Literal

from rlhf_dialog.commands.command_line import (
    FLAGS,
    exit_code_of,
    exit_on_sigterm,
    flag_lines,
    program,
    set_up_logging,
    show_help,
)
from rlhf_dialog.commands.registering import register
from rlhf_dialog.config.loading import dump_yaml, find_config, parse_arguments
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs import folder as run_folder
from rlhf_dialog.task_oriented.commands.train_with_person import train_with_person
from rlhf_dialog.task_oriented.runs.run import PolicyRun
from rlhf_dialog.task_oriented.runs.settings import PERSON, PolicyConfig, load_policy_config

logger = logging.getLogger(__name__)
OWN_FLAGS = FLAGS | {
    "overwrite": "replace the run in the run folder; on a terminal you must confirm by typing the folder's name",
}
USAGE = """usage: {program} --config FILE [--key value]
       e.g. {program} --config restaurant.yaml --error_rate 0.15 --batchsz 1024 --epoch 200 --process_num 8
  --config FILE   YAML file; searched as given, in configs/, in the folder of the script, and among the shipped files
  --resume [auto] continue the run in the run folder from its newest checkpoint; auto: begin a run if there is none yet, for a
                  scheduler that starts the same command again and again
                  with user: person, a run always goes on where it is (auto)
  --policy NAME   another policy than the file's, such as gp_sarsa, with its default arguments
  --register FILE Python file that registers an environment or a policy of your own, run first; also for evaluate_policy.py
  --transcripts N print N dialogues of the trained policy at the end: goal, acts, beliefs, rewards, verdict"""


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code. `argv` is `sys.argv[1:]` by default."""
    words = sys.argv[1:] if argv is None else argv
    set_up_logging()
    exit_on_sigterm()
    folders: list[Path] = []
    return exit_code_of(lambda: _main(words, folders), "--debug" in words, folders)


def _main(words: list[str], folders: list[Path]) -> None:
    name, overrides, flags = parse_arguments(words, OWN_FLAGS, texts=("resume", "register", "transcripts"))
    if "help" in flags:
        show_help(PolicyConfig, f"{__doc__}\n\n{USAGE.format(program=program())}\n{flag_lines(OWN_FLAGS)}")
        return
    if name is None:
        raise UserError(f"--config is missing; for example: {program()} --config restaurant.yaml")
    resume, transcripts = _resume_of(overrides, flags), _transcripts_of(overrides)
    if path := overrides.pop("register", None):
        register(path)
    if isinstance(overrides.get("policy"), str):
        overrides = {"policy": {"id": overrides.pop("policy")}, **overrides}
    found = find_config(name)
    logger.info("config: %s", found)
    config = load_policy_config(found, overrides)
    if "print_config" in flags:
        sys.stdout.write(dump_yaml(config))
        return
    if config.user == PERSON:
        folders.append(config.run_folder)
        if "overwrite" in flags:
            run_folder.confirm_overwrite(config.run_folder)
        train_with_person(config, "overwrite" in flags)
        return
    run = PolicyRun(config, "overwrite" in flags, resume)
    folders.append(run.folder)
    if run.start.overwrite:
        run_folder.confirm_overwrite(run.folder)
    run.train()
    for text in run.transcripts(transcripts):
        print(f"{text}\n")


def _resume_of(overrides: dict[str, Any], flags: set[str]) -> bool | Literal["auto"]:
    given = overrides.pop("resume", "false")
    if given not in ("true", "false", "auto"):
        raise UserError(f"--resume: found '{given}'; write --resume or --resume auto")
    if given != "false" and "overwrite" in flags:
        raise UserError("--overwrite replaces the run, --resume goes on with it; give one of them")
    return "auto" if given == "auto" else given == "true"


def _transcripts_of(overrides: dict[str, Any]) -> int:
    given = overrides.pop("transcripts", "0")
    if not given.isascii() or not given.isdigit():
        raise UserError(f"--transcripts: found '{given}', wanted a number of dialogues, such as 3")
    return int(given)
