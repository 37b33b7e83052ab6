"""The agent of a run on the Hub: checked before training begins, pushed when the run has ended."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf_dialog.config.loading import read_yaml
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.hub import LOCAL_NAMES
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import FAULTS, json_or, load_json, read_json
from rlhf_dialog.publishing.card import EXAMPLE, CardRun, local_names, may_be_example
from rlhf_dialog.publishing.files import Files, check_model, is_published, make_package
from rlhf_dialog.publishing.repository import Target, check_before_run, push, with_owner
from rlhf_dialog.runs.checkpoint import checkpoint_of_found_run
from rlhf_dialog.runs.identity import sha256_of
from rlhf_dialog.runs.metrics_file import read_metrics
from rlhf_dialog.runs.run_reader import check_run
from rlhf_dialog.runs.services.ledger import LEDGER, read_rows
from rlhf_dialog.runs.verification import sha256_of_file, versions

logger = logging.getLogger(__name__)
KEY = "push_to_hub"


def check_push(config: Config) -> None:
    """Raises UserError when the end of the run could not be pushed: no token, one that may only read, a name that is taken."""
    if config.push_to_hub:
        check_before_run(Target(config.push_to_hub, KEY, run=config.experiment_name))


def push_agent(config: Config, run: Path) -> None:
    """Push `agent/` of the finished run where `push_to_hub` says. Raises UserError with the command that repeats it."""
    if not config.push_to_hub:
        return
    target = Target(config.push_to_hub, KEY, run=config.experiment_name)
    try:
        address = publish(run / "agent", target, KEY)
    except UserError as error:
        raise UserError(
            f"{error}\nThe run has ended and its agent is saved; publish it with: rlhf-dialog push-to-hub --agent "
            f"{run / 'agent'} --repo {target.repo}"
        ) from None
    logger.info("agent published: %s", address)


def publish(folder: Path, target: Target, key: str, evaluation: Path | None = None) -> str:
    """Push an agent or a reward model; returns its address. What is wrong on this machine is found before the Hub is asked."""
    files, run = package(folder, target.repo, key, evaluation)
    named = with_owner(replace(target, run=run))
    if named.repo != target.repo:  # the card names the owner
        files, _ = package(folder, named.repo, key, evaluation)
    return push(files, named)


def package(folder: Path, repo: str, key: str, evaluation: Path | None = None) -> tuple[Files, str | None]:
    """Everything that a push of an agent or a reward model uploads, and the name of the agent's run.

    `evaluation` is an output of evaluate, see `run_of`; `key` named the folder. Raises UserError when it cannot be published.
    """
    run = run_of(folder, evaluation) if check_model(folder, key) else CardRun()
    return make_package(folder, repo, run, key), run.config.get("experiment_name")


def run_of(agent: Path, evaluation: Path | None = None) -> CardRun:
    """The run that the agent's folder lies in, as its card needs it; `evaluation` is an output of evaluate.

    By default that is evaluation.json in the run folder, if it is of this agent as it is now. Raises UserError for files that
    cannot be read.
    """
    run = agent.absolute().parent
    check_run(run)
    config, lines = run / "config.yaml", run / "metrics.jsonl"
    metrics = read_metrics(lines) if agent.name == "agent" and lines.is_file() else []  # those of the end of the run
    path = evaluation or _own_evaluation(agent)
    measured = None
    if path:
        measured = read_json(path, f"--evaluation: {path} cannot be read: ", "; evaluate again")
        is_tree = isinstance(measured, dict) and {"settings", "baselines"} <= set(measured)
        if not (is_tree and {"metrics", "after"} & set(measured)):
            what = "is not an output of rlhf-dialog evaluate; evaluate again, or name another file"
            raise UserError(f"--evaluation: {path} {what}")
    names = frozenset([*json_or(run / LOCAL_NAMES, [], list[str]), *local_names(measured)])
    settings = read_yaml(config) if config.is_file() else {}
    checkpoint = checkpoint_of_found_run(run)
    state = json_or(checkpoint / "trainer.json", {}, dict[str, Any]) if checkpoint else {}
    known = state.get("versions")  # of the libraries that wrote it
    uses = {str(name): str(version) for name, version in known.items()} if isinstance(known, dict) else versions()
    example = _example(run / LEDGER) if settings.get("ledger_texts") == "all" else EXAMPLE
    return CardRun(settings, measured, metrics[-1] if metrics else {}, uses, names, example)


def _example(ledger: Path) -> Sequence[str]:
    """The first prompt of a run, whose texts may leave this machine, that a card can show; else that of every card."""
    prompts = (row.get("prompt") for _, row in read_rows(ledger))
    texts = (turns for turns in prompts if isinstance(turns, list) and all(isinstance(turn, str) for turn in turns))
    return next((turns for turns in texts if may_be_example(turns)), EXAMPLE)


def _own_evaluation(agent: Path) -> Path | None:
    """evaluation.json of the run, if it holds the hash of this agent."""
    path = agent.absolute().parent / "evaluation.json"
    if not path.is_file():
        return None
    try:
        measured = load_json(path)["settings"].get("agent_hash")
    except FAULTS:
        return path  # reading it reports what is wrong
    if measured == hash_of_agent(agent):
        return path
    logger.warning("%s is not of this agent as it is now, so the card is without it; see --evaluation", path)
    return None


def hash_of_agent(folder: Path) -> str:
    """sha256 over the files of an agent that a push uploads, in hex: the same for a copy."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and is_published(path)]
    return sha256_of({path.name: sha256_of_file(path) for path in files})
