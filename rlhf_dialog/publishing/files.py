"""Which files of a model's folder are published, and their content."""

import fnmatch
import shutil
from pathlib import Path
from typing import Any, Literal

from rlhf_dialog.data.hub import MODEL_FILES
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import check_files
from rlhf_dialog.json_files import damage_as_user_error, load_json
from rlhf_dialog.models.chat_agent import AGENT_FILE
from rlhf_dialog.models.relevance import is_relevance_folder
from rlhf_dialog.publishing.privacy import clean_json, refuse_secrets

CARD = "README.md"
CLEANED = ("config.json", "generation_config.json", "tokenizer_config.json")
Kind = Literal["agent", "reward model"]
Files = dict[str, bytes | Path]  # name in the repository -> its content, or the file that holds it


def folder_kind(folder: Path, key: str) -> Kind:
    """What the folder holds. Raises UserError when it is neither an agent nor a reward model, with what is missing, or has a
    file that may not be opened (`found_files`)."""
    check_files(folder)
    if not (folder / "config.json").is_file():
        raise UserError(f"{key}: '{folder}' is not an agent: it has no config.json; {_advice(folder)}")
    if is_relevance_folder(str(folder)):
        raise UserError(
            f"{key}: '{folder}' is a relevance model, whose bank holds texts of its data; it is not published"
        )
    weights = list(folder.glob("*.safetensors"))
    if not [path for path in weights if path.name != "value_head.safetensors"]:
        raise UserError(f"{key}: '{folder}' has no weights (model.safetensors), so there is nothing to publish")
    if not (folder / "tokenizer_config.json").is_file():
        raise UserError(f"{key}: '{folder}' has no tokenizer (tokenizer_config.json), so nobody could use it")
    if (folder / AGENT_FILE).is_file():
        return "agent"
    if any(
        str(name).endswith("ForSequenceClassification") for name in settings_in(folder, key).get("architectures") or []
    ):
        return "reward model"
    raise UserError(
        f"{key}: '{folder}' is neither an agent (it has no {AGENT_FILE}) nor a reward model; {_advice(folder)}"
    )


def _advice(folder: Path) -> str:
    if (folder / "agent").is_dir():
        return f"did you mean {folder / 'agent'}?"
    if (folder / "config.yaml").is_file():
        return (
            f"the run has no agent yet: continue it with --resume, or: rlhf-dialog export --run {folder} --output DIR"
        )
    return "give the folder agent/ of a finished run"


def settings_in(folder: Path, key: str, name: str = "config.json") -> dict[str, Any]:
    """The JSON object in a file of the folder. Raises UserError when it cannot be read."""
    with damage_as_user_error(f"{key}: {folder / name} cannot be read: ", "; save the model again"):
        tree = load_json(folder / name)
        if not isinstance(tree, dict):
            raise ValueError("is not a JSON object")
    return tree


def published_files(folder: Path, key: str) -> Files:
    """The files of the folder that are published, without the card. Raises UserError for damage, secrets, and what may not be
    opened (`found_files`)."""
    check_files(folder)
    files: Files = {}
    for path in sorted(folder.iterdir()):
        if is_published(path):
            files[path.name] = path if path.suffix == ".safetensors" else _content(path, key)
    return files


def is_published(path: Path) -> bool:
    """Whether a file of this name belongs to a model."""
    return any(fnmatch.fnmatchcase(path.name, pattern) for pattern in MODEL_FILES)


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
