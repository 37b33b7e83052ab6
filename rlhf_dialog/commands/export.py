"""The command `rlhf-dialog export`: write a checkpoint as an agent folder, like `agent/` at the end of a run."""

import logging
import re
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from rlhf_dialog.commands.command_line import new_folder
from rlhf_dialog.commands.options import REGISTER, Options, option, register, run_command
from rlhf_dialog.config.loading import load_config, read_yaml
from rlhf_dialog.config.registry import ModelFactory
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.untrusted import check_class
from rlhf_dialog.found_files import check_files
from rlhf_dialog.runs.checkpoint import as_user_error, checkpoints_of, iteration_of, newest_checkpoint, read_state

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlhf_dialog.models.policy import Policy

logger = logging.getLogger(__name__)
PATHS = {"model_path": "--model_path", "env.args.tokenizer_path": "--tokenizer_path"}
READ = ("config.yaml", "policy.safetensors")  # of a checkpoint, besides trainer.json
PERMISSIONS = ("trust_remote_code", "allow_pickle_weights")
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
    trust_config: bool = option("allow Hub models, pickles and code that the run's config.yaml asks for")
    register: str | None = option(REGISTER)


def run(options: ExportOptions) -> None:
    """Write the agent, and say how to talk to it."""
    given = {"model_path": options.model_path, "env.args.tokenizer_path": options.tokenizer_path}
    named = {key: path for key, path in given.items() if path is not None}
    if options.register:
        register(options.register)
    iteration = export(options.run, options.output, options.checkpoint, named, options.trust_config)
    logger.info(
        "agent of iteration %d saved; talk to it: rlhf-dialog chat --agent %s", iteration, quote(options.output)
    )


def export(
    run: Path, output: str, checkpoint: str | None = None, named: dict[str, str] | None = None, trust: bool = False
) -> int:
    """Write the agent of a checkpoint of `run` to the new folder `output`; returns the checkpoint's iteration.

    `checkpoint`: its name or number, by default the newest. `named`: overrides of model_path and env.args.tokenizer_path in the
    run's configuration. `trust`: the configuration may name models on the Hub, and allow pickles and code. Raises UserError when
    there is no such checkpoint, when it is damaged, when the starting model is missing or, with LoRA, differs, and when `output`
    is not empty.
    """
    chosen = _chosen(run, checkpoint)
    from rlhf_dialog.models.saved_agent import save_agent
    from rlhf_dialog.runs.verification import verify

    source, state = read_state(run / "checkpoints", chosen)
    verify(source, state, names=READ, option="--checkpoint")
    config = _read_config(source / "config.yaml", named or {}, trust)
    with new_folder(output) as folder:
        policy, tokenizer = _load_policy(config, source, state)
        save_agent(folder, policy, tokenizer, config)
    return int(state["iteration"])


def _chosen(run: Path, checkpoint: str | None) -> Path:
    """The checkpoint of that name or number, or the newest. Raises UserError with the list of checkpoints."""
    folder = run / "checkpoints"
    checkpoints = checkpoints_of(folder)
    if not checkpoints:
        has_begun = (run / "config.yaml").is_file()
        reason = "has no checkpoint yet" if has_begun else "is not a run folder with checkpoints"
        raise UserError(f"--run: '{run}' {reason}; choose another run folder, e.g. run_results/first")
    if checkpoint is None:
        return newest_checkpoint(folder) or checkpoints[-1]
    number = re.fullmatch("(?:iter_)?([0-9]{1,250})", checkpoint)
    for path in checkpoints:
        if number and iteration_of(path) == int(number[1]):
            return path
    names = ", ".join(path.name for path in checkpoints)
    raise UserError(f"--checkpoint: there is no '{checkpoint[:250]}' in {folder}; choose one of {names}")


def _read_config(path: Path, named: dict[str, str], trust: bool) -> Config:
    """The run's configuration with the values `named`. Raises UserError if it names a missing folder, unless it is trusted."""
    check_files(path.parent, [path.name])
    overrides: dict[str, Any] = UNUSED | named
    if not trust:
        if asked := [key for key in PERMISSIONS if read_yaml(path).get(key)]:
            logger.warning("%s: %s ignored; use --trust_config to allow it", path, " and ".join(asked))
        overrides |= dict.fromkeys(PERMISSIONS, False)
    config = load_config(path, overrides)
    for key in () if trust else ("model_class", "critic_class"):
        if (wanted := getattr(config, key)) is not None:
            check_class(path, key, ModelFactory, wanted.id, wanted.args)
    values = {"model_path": config.model_path, "env.args.tokenizer_path": config.env.args.tokenizer_path}
    for key, value in values.items():
        if value is not None and key not in named and not trust and not Path(value).expanduser().is_dir():
            raise UserError(
                f"{path}: {key} is {value[:100]!r}, which is not a folder here; set its folder with {PATHS[key]} DIR, "
                "or, if it is a name on the Hub, allow it with --trust_config"
            )
    return config


def _load_policy(config: Config, source: Path, state: dict[str, Any]) -> "tuple[Policy, PreTrainedTokenizerBase]":
    """The policy of the checkpoint, built as in the run, and its tokenizer."""
    from rlhf_dialog.models.loading import Form, build_trained, load_policy_lm, load_tokenizer
    from rlhf_dialog.models.pretrained import warn_of_remote_code
    from rlhf_dialog.models.weights import load_module
    from rlhf_dialog.runs.identity import model_fingerprint

    if config.trust_remote_code:
        warn_of_remote_code(
            {"model_path": config.model_path, "env.args.tokenizer_path": config.env.args.tokenizer_path}
        )
    lm = load_policy_lm(config, Form(config.packing))
    if config.use_lora:
        _refuse_another_base(model_fingerprint(lm), config, source, state)
    tokenizer = load_tokenizer(config, lm)
    policy, _ = build_trained(config, lm, {})
    with as_user_error(source):
        load_module(policy, source / "policy.safetensors", lm.device)
    return policy.eval(), tokenizer


def _refuse_another_base(fingerprint: str, config: Config, source: Path, state: dict[str, Any]) -> None:
    """Raises UserError if the model is not the one that the adapter was trained on."""
    with as_user_error(source):
        expected = state.get("identity", {}).get("model_path", fingerprint)  # earlier versions did not record it
    if fingerprint != expected:
        raise UserError(
            f"{source}: its adapter belongs to another model than '{config.model_path}' now holds (trained on "
            f"{str(expected)[:100]!r}, found {fingerprint!r}); "
            "set --model_path to the folder of the model that the run started from"
        )


main = partial(run_command, ExportOptions, run)  # the command line; returns the exit code
