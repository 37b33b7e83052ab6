"""Which files of a model's folder are published, and their content, with the card."""

import fnmatch
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rlhf_dialog.data.hub import MODEL_FILES
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import check_files
from rlhf_dialog.json_files import damage_as_user_error, read_json
from rlhf_dialog.models.chat_agent import AGENT_FILE
from rlhf_dialog.models.relevance import is_relevance_folder
from rlhf_dialog.publishing.card import CardRun, agent_card, reward_card
from rlhf_dialog.publishing.privacy import clean_json, refuse_secrets

CARD = "README.md"
CLEANED = ("config.json", "generation_config.json", "tokenizer_config.json")
NEEDED = {"config.json": "is not an agent", "tokenizer_config.json": "has no tokenizer"}
ADVICE = "give the folder agent/ of a finished run; rlhf-dialog export writes that of another one"
Files = dict[str, bytes | Path]  # name in the repository -> its content, or the file that holds it


def make_package(folder: Path, repo: str, run: CardRun, key: str) -> Files:
    """The files of an agent or a reward model, with a card; `run` is the agent's. `key` named the folder.

    Raises UserError when the folder holds neither, when a file is damaged or may not be opened (`found_files`), and when one
    holds a secret.
    """
    is_agent = check_model(folder, key)
    model = read(folder, key, AGENT_FILE if is_agent else "config.json")
    report = read(folder, key, "report.json") if (folder / "report.json").is_file() else {}
    try:
        card = agent_card(repo, model, run) if is_agent else reward_card(repo, report, model)
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        found = "config.yaml or evaluation.json of the run" if is_agent else "its report.json"
        raise UserError(f"{key}: {found} is damaged ({type(error).__name__}: {error}); make it again") from error
    refuse_secrets(CARD, card.encode(), key)
    return {**published_files(folder, key), CARD: card.encode()}


def check_model(folder: Path, key: str) -> bool:
    """Whether the folder holds an agent; else a reward model. Raises UserError, with what is missing, when it is neither, and
    for a file that may not be opened (`found_files`)."""
    check_files(folder)
    for name, what in NEEDED.items():
        if not (folder / name).is_file():
            raise UserError(f"{key}: '{folder}' {what}: it has no {name}; {ADVICE}")
    if is_relevance_folder(str(folder)):
        raise UserError(
            f"{key}: '{folder}' is a relevance model, whose bank holds texts of its data; it is not published"
        )
    if not [path for path in folder.glob("*.safetensors") if path.name != "value_head.safetensors"]:
        raise UserError(f"{key}: '{folder}' has no weights (model.safetensors), so there is nothing to publish")
    architectures = read(folder, key).get("architectures") or []
    is_agent = (folder / AGENT_FILE).is_file()
    if not is_agent and not any(str(name).endswith("ForSequenceClassification") for name in architectures):
        what = f"is neither an agent (it has no {AGENT_FILE}) nor a reward model"
        raise UserError(f"{key}: '{folder}' {what}; {ADVICE}")
    return is_agent


def read(folder: Path, key: str, name: str = "config.json") -> dict[str, Any]:
    """The JSON object in a file of the folder. Raises UserError when it cannot be read."""
    found: dict[str, Any] = read_json(
        folder / name, f"{key}: {folder / name} cannot be read: ", "; save the model again", dict
    )
    return found


def published_files(folder: Path, key: str) -> Files:
    """The files of the folder that are published, without the card. Raises UserError for damage, secrets, and what may not be
    opened (`found_files`)."""
    check_files(folder)
    paths = [path for path in sorted(folder.iterdir()) if is_published(path)]
    for path in paths:
        if path.suffix == ".safetensors":
            refuse_secrets(path.name, _header(path, key), key)
    return {path.name: path if path.suffix == ".safetensors" else _content(path, key) for path in paths}


def is_published(path: Path) -> bool:
    """Whether a file of this name belongs to a model."""
    return any(fnmatch.fnmatchcase(path.name, pattern) for pattern in MODEL_FILES)


def _header(path: Path, key: str) -> bytes:
    """The header of a safetensors file: names, shapes and any text. Raises UserError when the file is none, or holds more."""
    faults = (SafetensorError, OSError)
    with (
        damage_as_user_error(f"{key}: {path} is no safetensors file: ", "; save the model again", faults),
        safe_open(path, "np"),  # checks that the header describes every byte behind it
        path.open("rb") as opened,
    ):
        return opened.read(int.from_bytes(opened.read(8), "little"))


def _content(path: Path, key: str) -> bytes:
    content = path.read_bytes()
    if path.name in CLEANED:
        with damage_as_user_error(f"{key}: {path} cannot be read: ", "; save the model again"):
            content = clean_json(content)
    refuse_secrets(path.name, content, key)
    return content


def write(files: Files, folder: Path) -> None:
    """Write the files into the folder, byte for byte what a push uploads. Raises OSError."""
    for name, content in files.items():
        if isinstance(content, Path):
            shutil.copyfile(content, folder / name)
        else:
            (folder / name).write_bytes(content)
