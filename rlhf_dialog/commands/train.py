"""The command `rlhf-dialog train`, also run by train_ppo.py: starts a run from the command line's configuration and flags."""

import logging
from functools import partial
from pathlib import Path

from rlhf_dialog.commands.options import REGISTER, RunOptions, check_run_keys, option, register, run_command
from rlhf_dialog.config.loading import RunKeys
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.hub import check_folder
from rlhf_dialog.data.sources import check_path
from rlhf_dialog.distributed.rank_errors import rank, with_one_voice
from rlhf_dialog.distributed.runtime import keep_freed_memory
from rlhf_dialog.errors import UserError

logger = logging.getLogger(__name__)


class TrainOptions(RunOptions[Config]):
    description = (
        "Train a dialog model with PPO. Metrics, checkpoints and the trained agent go to <run_dir>/<experiment_name>."
    )
    schema = Config
    usage = """{program} --config FILE [--key value] [--a.b value]
       e.g. {program} --config nlp_ppo.yaml --lr 1e-5 --reward_class.args.intent_coef 0.3"""
    example = "nlp_ppo.yaml"

    resume_weights_only: str | None = option(
        "start a new run, in its own folder, with the weights of the newest checkpoint of RUN_FOLDER; optimizer, counters, "
        "position in the data and KL controller are reset, and RUN_FOLDER is not changed",
        metavar="RUN_FOLDER",
    )
    register: str | None = option(f"{REGISTER}; give it again to resume", None, metavar="FILE")
    show_prompts: str | None = option(
        "print the first N training prompts as the model reads them, with special tokens, what was cut off, and their "
        "references, and exit; loads no model and writes nothing",
        metavar="N",
    )
    smoke: bool = option(
        "test every stage with two prompts, from the data to a reply of the saved agent; keeps no files"
    )

    def load(self, path: Path | None) -> Config:
        """The configuration; what the schema does not know is found before torch is loaded. Raises UserError."""
        assert path is not None
        keys = RunKeys(path, self.keys)
        config = check_run_keys(keys, self.register)
        if not self.print_config and config.model_class is None:
            check_folder(config.model_path, "model_path")
        if not self.print_config and config.environment is None and config.env.args.data_path:
            check_path(config.env.args.data_path)
        import rlhf_dialog.runs.agent  # noqa: F401  what is built in registers itself

        if self.register:
            register(self.register)
        return keys.load()


def run(options: TrainOptions) -> None:
    """Train; the run folder is appended to the `folders` as soon as it is known."""
    weights, resume = options.resume_weights_only, options.resumes()
    if weights == "":
        raise UserError("--resume_weights_only: give the folder of the run to take the weights from")
    count = options.show_prompts
    if count is not None and not (count.isdecimal() and 1 <= int(count) <= 10**6):
        raise UserError(f"--show_prompts: found '{count}'; give the number of prompts to print, 1 to 1000000")
    config = options.settings
    if count is not None:
        from rlhf_dialog.runs.prompt_preview import shown_prompts

        if rank() == 0:
            print(*shown_prompts(config, int(count)), sep="\n")
        return
    from rlhf_dialog.runs.agent import PPOAgent
    from rlhf_dialog.runs.smoke import smoke

    keep_freed_memory()
    agent = PPOAgent(config, options.overwrite, resume, weights_from=weights)
    options.folders.append(agent.run_folder)
    if options.smoke:
        smoke(agent)
        logger.info("smoke test passed with 2 prompts")
        return
    agent.train()


main = partial(with_one_voice, partial(run_command, TrainOptions, run))  # the command line; returns the exit code
