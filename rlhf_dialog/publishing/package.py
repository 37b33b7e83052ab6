"""Everything that a push uploads: the files of a model and its card."""

from pathlib import Path
from typing import Any

from rlhf_dialog.config.loading import read_yaml
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import read_json
from rlhf_dialog.models.chat_agent import AGENT_FILE
from rlhf_dialog.publishing.card import CardRun, agent_card
from rlhf_dialog.publishing.files import CARD, Files, folder_kind, published_files, settings_in
from rlhf_dialog.publishing.privacy import refuse_secrets
from rlhf_dialog.publishing.reward_card import reward_card


def make_package(folder: Path, repo: str, run: CardRun, key: str) -> Files:
    """The files of an agent or a reward model, with a card; `run` is the agent's. `key` named the folder.

    Raises UserError when the folder holds neither, when a file is damaged, and when one holds a token.
    """
    if folder_kind(folder, key) == "agent":
        card = agent_card(repo, settings_in(folder, key, AGENT_FILE), run, key)
    else:
        report = settings_in(folder, key, "report.json") if (folder / "report.json").is_file() else {}
        card = reward_card(repo, report, settings_in(folder, key), key)
    content = card.encode()
    refuse_secrets(CARD, content, key)
    return {**published_files(folder, key), CARD: content}


def read_run(folder: Path, evaluation: Path | None, metrics: dict[str, Any], versions: dict[str, str]) -> CardRun:
    """What a run folder says of its agent. Raises UserError for files that cannot be read."""
    config = folder / "config.yaml"
    return CardRun(
        read_yaml(config) if config.is_file() else {},
        _read_evaluation(evaluation) if evaluation else None,
        metrics,
        versions,
    )


def _read_evaluation(path: Path) -> dict[str, Any]:
    tree = read_json(path, f"--evaluation: {path} cannot be read: ", "; evaluate again")
    if not (isinstance(tree, dict) and {"settings", "baselines"} <= set(tree) and {"metrics", "after"} & set(tree)):
        raise UserError(
            f"--evaluation: {path} is not an output of rlhf-dialog evaluate; evaluate again, or name another file"
        )
    return tree
