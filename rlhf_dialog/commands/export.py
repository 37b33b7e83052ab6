"""The command `rlhf-dialog export`: an agent folder of a checkpoint, as `agent/` is one of the end of a run."""

import argparse
import logging
import re
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_dialog.commands.command_line import exit_code_of, exit_on_sigterm, new_folder, set_up_logging
from rlhf_dialog.config.loading import load_config, read_yaml
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.loading import build_trained, load_causal_lm, load_tokenizer
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.pretrained import warn_of_remote_code
from rlhf_dialog.models.weights import load_module
from rlhf_dialog.runs.checkpoint import damage_told, newest_checkpoint, read_state, save_agent
from rlhf_dialog.runs.identity import model_fingerprint

logger = logging.getLogger(__name__)
DESCRIPTION = """Make an agent of a checkpoint of a run, for example of one that was interrupted: a folder with model, tokenizer,
value head and rlhf_dialog.json, for `rlhf-dialog chat` and for transformers. Adapters (use_lora) are merged into the model.

The config.yaml of the checkpoint says which model the run started from. It was found, not written by you, so it is read as data:
the model and its tokenizer must be local folders, and neither pickles are read nor code of theirs is run. --trust_config allows
what the configuration allows."""
PATHS = {"model_path": "--model_path", "env.args.tokenizer_path": "--tokenizer_path"}
PERMISSIONS = ("trust_remote_code", "allow_pickle_weights")
UNUSED = {
    "reward_class": {"id": "LengthMatch"},
    "vec_info_class": {"id": "NLPVecInfo"},
}  # the run's may be user's classes


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code. `argv` is `sys.argv[1:]` by default."""
    options = _parse(argv)
    set_up_logging()
    exit_on_sigterm()
    return exit_code_of(lambda: _main(options), options.debug)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--run", type=Path, required=True, help="run folder, e.g. run_results/first")
    add("--checkpoint", help="checkpoint of the run, e.g. iter_000004 or 4; default: the newest")
    add("--output", required=True, help="folder to write; refused when it holds something")
    add("--model_path", help="where the model is now that the run started from; default: the configuration's")
    add("--tokenizer_path", help="where its tokenizer is now; default: the configuration's")
    add(
        "--trust_config", action="store_true", help="let the run's config.yaml name models on the Hub, pickles and code"
    )
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser.parse_args(argv)


def _main(options: argparse.Namespace) -> None:
    given = {"model_path": options.model_path, "env.args.tokenizer_path": options.tokenizer_path}
    named = {key: path for key, path in given.items() if path is not None}
    iteration = export(options.run, options.output, options.checkpoint, named, options.trust_config)
    logger.info("agent of iteration %d saved; talk to it: rlhf-dialog chat --agent %s", iteration, Path(options.output))


def export(
    run: Path, output: str, checkpoint: str | None = None, named: dict[str, str] | None = None, trust: bool = False
) -> int:
    """Write the agent of a checkpoint of `run` to the new folder `output`; returns the checkpoint's iteration.

    `checkpoint`: its name or number, by default the newest. `named`: values of the user for model_path and
    env.args.tokenizer_path of the run's configuration. `trust`: the configuration itself may name models on the Hub, and allow
    pickles and code. Raises UserError when there is no such checkpoint, when it is damaged, when the starting model is gone or,
    with LoRA, is another one, and when `output` holds something.
    """
    source, state = read_state(run / "checkpoints", _chosen(run, checkpoint))
    config = _read_config(source / "config.yaml", named or {}, trust)
    with new_folder(output) as folder:
        policy, tokenizer = _load_policy(config, source, state)
        save_agent(folder, policy, tokenizer, config)
    return int(state["iteration"])


def _chosen(run: Path, checkpoint: str | None) -> Path:
    """The checkpoint of that name or number, or the newest. Raises UserError that lists those which are there."""
    folder = run / "checkpoints"
    names = sorted(path.name for path in folder.glob("iter_*") if re.fullmatch("iter_[0-9]+", path.name))
    if not names:
        has_begun = (run / "config.yaml").is_file()
        found = "has no checkpoint yet" if has_begun else "is not the folder of a run with checkpoints"
        raise UserError(f"--run: '{run}' {found}; name a run folder, e.g. run_results/first")
    if checkpoint is None:
        return newest_checkpoint(folder) or folder / names[-1]
    number = re.fullmatch("(?:iter_)?([0-9]+)", checkpoint)
    for name in names:
        if number and int(name.removeprefix("iter_")) == int(number[1]):
            return folder / name
    raise UserError(f"--checkpoint: there is no '{checkpoint}' in {folder}; it holds {', '.join(names)}")


def _read_config(path: Path, named: dict[str, str], trust: bool) -> Config:
    """The run's configuration with the values `named`. Raises UserError when it names what is not here, unless it is trusted."""
    overrides: dict[str, Any] = UNUSED | named
    if not trust:
        if asked := [key for key in PERMISSIONS if read_yaml(path).get(key)]:
            logger.warning("%s: %s ignored; --trust_config allows it", path, " and ".join(asked))
        overrides |= dict.fromkeys(PERMISSIONS, False)
    config = load_config(path, overrides)
    values = {"model_path": config.model_path, "env.args.tokenizer_path": config.env.args.tokenizer_path}
    for key, value in values.items():
        if value is not None and key not in named and not trust and not Path(value).expanduser().is_dir():
            raise UserError(
                f"{path}: {key} is {value[:100]!r}, and there is no such folder here; say where it is now with {PATHS[key]} DIR, "
                "or, if it is a name on the Hub, allow it with --trust_config"
            )
    return config


def _load_policy(config: Config, source: Path, state: dict[str, Any]) -> tuple[Policy, PreTrainedTokenizerBase]:
    """The policy of the checkpoint, built as the run builds it, and its tokenizer."""
    remote, pickle = config.trust_remote_code, config.allow_pickle_weights
    if remote:
        warn_of_remote_code(
            {"model_path": config.model_path, "env.args.tokenizer_path": config.env.args.tokenizer_path}
        )
    lm = load_causal_lm(config.model_path, "model_path", remote, pickle, config.packing)
    if config.use_lora:
        _refuse_another_base(model_fingerprint(lm), config, source, state)
    tokenizer = load_tokenizer(config, lm)
    policy, _ = build_trained(config, lm, {})
    with damage_told(source):
        load_module(policy, source / "policy.safetensors", lm.device)
    return policy.eval(), tokenizer


def _refuse_another_base(found: str, config: Config, source: Path, state: dict[str, Any]) -> None:
    """An adapter is a change of the model that it was trained on. Raises UserError for another one."""
    with damage_told(source):
        wanted = state.get("identity", {}).get("model_path", found)  # earlier versions did not say
    if found != wanted:
        raise UserError(
            f"{source}: its adapter belongs to another model than '{config.model_path}' now holds ({str(wanted)[:100]!r} then, "
            f"{found!r} now); name the folder of the model that the run started from with --model_path"
        )
