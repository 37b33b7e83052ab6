"""The command `rlhf-dialog export`: write a checkpoint as an agent folder, like `agent/` at the end of a run."""

import logging
import re
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from rlhf_dialog.commands.command_line import new_folder
from rlhf_dialog.commands.options import REGISTER, Options, option, register, run_command
from rlhf_dialog.config.loading import load_config
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import check_files, check_part, not_trusted
from rlhf_dialog.runs.checkpoint import as_user_error, checkpoints_of, iteration_of, newest_checkpoint, read_state

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlhf_dialog.models.policy import Policy

logger = logging.getLogger(__name__)
READ = ("config.yaml", "policy.safetensors")  # of a checkpoint, besides trainer.json
PERMISSIONS = ("trust_remote_code", "allow_pickle_weights", "model_class", "critic_class")
# in place of those of the run, which may be the user's own
UNUSED = {"reward_class": {"id": "LengthMatch"}, "vec_info_class": {"id": "NLPVecInfo"}}


class ExportOptions(Options):
    description = """Export a checkpoint of a run as an agent, for example after an interruption: a folder with model, tokenizer,
value head and rlhf_dialog.json, for `rlhf-dialog chat` and for transformers. Adapters (use_lora) are merged into the model.

The config.yaml of the checkpoint names the model that the run started from. The file may come from someone else, so model and
tokenizer must be local folders, and no pickles are read and no code is run. --trust_config allows what the file asks for."""

    run: Path = option("run folder, e.g. run_results/first")
    checkpoint: str | None = option("checkpoint to export, e.g. iter_000004 or 4; default: the newest")
    output: str = option("new or empty folder to write")
    model_path: str | None = option("folder of the model that the run started from; default: as in the configuration")
    tokenizer_path: str | None = option("folder of its tokenizer; default: as in the configuration")
    trust_config: bool = option(
        "allow Hub models, pickles and code that the run's config.yaml asks for, and checkpoints that are a link"
    )
    register: str | None = option(REGISTER)


def run(options: ExportOptions) -> None:
    """Write the agent, and say how to talk to it."""
    if options.register:
        register(options.register)
    check_part(options.run / "checkpoints", options.trust_config, of_run=True)
    chosen = _choose(options.run, options.checkpoint)
    from rlhf_dialog.models.saved_agent import save_agent
    from rlhf_dialog.runs.verification import verify

    source, state = read_state(options.run / "checkpoints", chosen)
    verify(source, state, names=READ, option="--checkpoint")
    config = _read_config(source / "config.yaml", options)
    system_prompt = state.get("system_prompt", config.system_prompt)
    if not isinstance(system_prompt, str | None):
        raise UserError(f"{source}: its system_prompt is not a text; export another checkpoint")
    with new_folder(options.output) as folder:
        policy, tokenizer = _load_policy(config, source, state)
        save_agent(folder, policy, tokenizer, config.model_copy(update={"system_prompt": system_prompt}))
    text = "agent of iteration %d saved; talk to it: rlhf-dialog chat --agent %s"
    logger.info(text, int(state["iteration"]), quote(options.output))


def _choose(run: Path, name: str | None) -> Path:
    """The checkpoint of that name or number, or the newest. Raises UserError with the list of checkpoints."""
    folder = run / "checkpoints"
    checkpoints = {iteration_of(path): path for path in checkpoints_of(folder)}
    if not checkpoints:
        raise UserError(f"--run: '{run}' has no checkpoint; choose a run folder that has, e.g. run_results/first")
    if name is None:
        return newest_checkpoint(folder) or checkpoints[max(checkpoints)]
    number = re.fullmatch("(?:iter_)?([0-9]{1,250})", name)
    if number and int(number[1]) in checkpoints:
        return checkpoints[int(number[1])]
    names = ", ".join(path.name for path in checkpoints.values())
    raise UserError(f"--checkpoint: there is no '{name[:250]}' in {folder}; choose one of {names}")


def _read_config(path: Path, options: ExportOptions) -> Config:
    """The run's configuration with the folders of the options. Raises UserError for what only --trust_config allows."""
    check_files(path.parent, [path.name])
    given = {"model_path": options.model_path, "env.args.tokenizer_path": options.tokenizer_path}
    named = {key: value for key, value in given.items() if value is not None}
    config = load_config(path, UNUSED | named)
    if options.trust_config:
        return config
    if asked := [key for key in PERMISSIONS if getattr(config, key)]:
        raise not_trusted(path, f"{' and '.join(asked)}: allows code or pickles")
    for key, value in (("model_path", config.model_path), ("env.args.tokenizer_path", config.env.args.tokenizer_path)):
        if value is not None and key not in named and not Path(value).expanduser().is_dir():
            option = f"--{key.removeprefix('env.args.')} DIR"
            why = f"{key} is {value[:100]!r}, which is not a folder here: set its folder with {option}"
            raise not_trusted(path, why)
    return config


def _load_policy(config: Config, source: Path, state: dict[str, Any]) -> "tuple[Policy, PreTrainedTokenizerBase]":
    """The policy of the checkpoint, built as in the run, and its tokenizer."""
    from rlhf_dialog.models.loading import Form, build_trained, load_policy_lm, load_tokenizer
    from rlhf_dialog.models.pretrained import warn_of_remote_code
    from rlhf_dialog.models.weights import load_module
    from rlhf_dialog.runs.identity import model_fingerprint

    if config.trust_remote_code:
        paths = {"model_path": config.model_path, "env.args.tokenizer_path": config.env.args.tokenizer_path}
        warn_of_remote_code(paths)
    lm = load_policy_lm(config, Form(config.packing))
    with as_user_error(source):
        expected = state["identity"]["model_path"]
    if config.use_lora and expected != model_fingerprint(lm):
        raise UserError(
            f"{source}: its adapter belongs to another model than '{config.model_path}' now holds; set --model_path to the "
            "folder of the model that the run started from"
        )
    tokenizer = load_tokenizer(config, lm)
    policy, _ = build_trained(config, lm, {})
    with as_user_error(source):
        load_module(policy, source / "policy.safetensors", lm.device)
    return policy.eval(), tokenizer


main = partial(run_command, ExportOptions, run)  # the command line; returns the exit code
