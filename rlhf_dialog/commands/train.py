"""The command `rlhf-dialog train`, also run by train_ppo.py: starts a run from the command line's configuration and flags."""

import logging
import os
import sys
from functools import partial
from pathlib import Path

from rlhf_dialog.commands.command_line import (
    FLAGS,
    exit_code_of,
    exit_on_sigterm,
    flag_lines,
    program,
    set_up_logging,
    show_help,
)
from rlhf_dialog.commands.from_trl import from_trl
from rlhf_dialog.commands.registering import register
from rlhf_dialog.config.loading import dump_yaml, find_config, load_config, parse_arguments
from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed import launch
from rlhf_dialog.distributed.memory.allocator import keep_freed_memory
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs import folder as run_folder
from rlhf_dialog.runs.agent import PPOAgent
from rlhf_dialog.runs.smoke import smoke

logger = logging.getLogger(__name__)
TRAIN_FLAGS = FLAGS | {
    "overwrite": "replace the run in the run folder; on a terminal you must confirm by typing the folder's name",
    "smoke": "test every stage with two prompts, from the data to a reply of the saved agent; keeps no files",
}
USAGE = """Train a dialog model with PPO. Metrics, checkpoints and the trained agent go to <run_dir>/<experiment_name>.

usage: {program} --config FILE [--key value] [--a.b value]
       e.g. {program} --config nlp_ppo.yaml --lr 1e-5 --reward_class.args.intent_coef 0.3
  --config FILE   YAML file; searched as given, in configs/, in the folder of the script, and among the shipped files
  --resume [auto] continue the run in the run folder from its newest checkpoint; auto: begin a run if there is none yet, for a
                  scheduler that starts the same command again and again
  --resume_weights_only RUN_FOLDER
                  start a new run, in its own folder, with the weights of the newest checkpoint of RUN_FOLDER; optimizer,
                  counters, position in the data and KL controller are reset, and RUN_FOLDER is not changed
  --resume_from CHECKPOINT
                  continue the run in the run folder from an older checkpoint (iter_000004, or 4); later checkpoints, metrics
                  and agents move to checkpoints/abandoned/; use --resume to continue afterwards
  --register FILE Python file that registers rewards, environments, networks of your own, run first; give it again to resume
  --from_trl FILE print the YAML of the run that TRL's PPO makes of this YAML, and exit; also the command line of TRL's script, in
                  quotes. What has no counterpart is a comment, and a line on stderr"""


def main(argv: list[str] | None = None) -> int:
    """The command line of a training run; returns the exit code. `argv` is `sys.argv[1:]` by default."""
    words = sys.argv[1:] if argv is None else argv
    set_up_logging()
    exit_on_sigterm()
    folders: list[Path] = []
    run = partial(_main, words, folders)
    return launch.with_one_voice(lambda: exit_code_of(run, "--debug" in words, folders))


def _main(words: list[str], folders: list[Path]) -> None:
    """Run the command; the run folder is appended to `folders` as soon as it is known."""
    name, overrides, flags = parse_arguments(
        words, TRAIN_FLAGS, texts=("resume_from", "resume", "from_trl", "register")
    )
    if "help" in flags:
        usage = f"{USAGE.format(program=program())}\n{flag_lines(TRAIN_FLAGS)}"
        show_help(Config, usage)
        return
    if (given := overrides.pop("from_trl", None)) is not None:
        _print_from_trl(given, [*overrides, *flags, *([] if name is None else ["config"])])
        return
    if file := overrides.pop("register", None):
        register(file)
    if name is None:
        raise UserError(f"--config is missing; for example: {program()} --config nlp_ppo.yaml")
    path = find_config(name)
    logger.info("config: %s", path)
    weights = overrides.pop("resume_weights_only", None)
    if weights is True or weights == "":
        raise UserError("--resume_weights_only: give the folder of the run to take the weights from")
    resume_from, resume = overrides.pop("resume_from", None), overrides.pop("resume", "false")
    if resume not in ("true", "false", "auto"):
        raise UserError(f"--resume: found '{resume}'; write --resume or --resume auto")
    if resume != "false" and "overwrite" in flags:
        raise UserError("--overwrite replaces the run, --resume goes on with it; give one of them")
    config = load_config(path, overrides)
    if "print_config" in flags:
        sys.stdout.write(dump_yaml(config))
        return
    if os.path.expanduser(config.run_dir).startswith("~"):
        raise UserError(
            f"run_dir: '{config.run_dir}': there is no such user; write ./{config.run_dir} for a name that begins with ~"
        )
    keep_freed_memory()
    agent = PPOAgent(
        config,
        "overwrite" in flags,
        "auto" if resume == "auto" else resume == "true",
        weights_from=weights and str(weights),
        resume_from=resume_from,
    )
    folders.append(agent.run_folder)
    if "smoke" not in flags:
        if agent.start.overwrite and not agent.start.resume:
            launch.start(config).on_main(lambda: run_folder.confirm_overwrite(agent.run_folder))
        agent.train()
        return
    seconds = ", ".join(f"{stage} {value:.1f} s" for stage, value in smoke(agent).items())
    logger.info("smoke test passed with 2 prompts: %s", seconds)


def _print_from_trl(given: str, others: list[str]) -> None:
    """Print the YAML that --from_trl asks for, and the notes on stderr."""
    if given in ("true", ""):
        raise UserError(
            '--from_trl: give a YAML file, or a command line in quotes: --from_trl="python ppo.py --seed 1"'
        )
    if others:
        raise UserError(f"--from_trl only prints a YAML; leave --{others[0]} out, and give it with --config run.yaml")
    text, notes = from_trl(given)
    for note in notes:
        logger.info("%s", note)
    sys.stdout.write(text)
