"""The agent that a bot begins with, copied: its own files, and none that lie elsewhere."""

import logging
import shutil
from functools import partial
from pathlib import Path

from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.data.chat_models import chat_settings
from rlhf_dialog.errors import UserError

logger = logging.getLogger(__name__)
AGENT_FILE = "rlhf_dialog.json"


def _own_ground(source: Path) -> Path:
    """The folder that links of an agent may lead to: its own, or in the Hub's cache that of the whole model."""
    folder = source.resolve()
    models = (one for one in folder.parents if one.name.startswith("models--") and (one / "blobs").is_dir())
    return next((one for one in models if one / "snapshots" in folder.parents), folder)


def _left_out(ground: Path, folder: str, names: list[str]) -> set[str]:
    """The names that are not copied."""
    hidden = {name for name in names if name.startswith(".")}
    links = [name for name in names if (Path(folder) / name).is_symlink()]
    leaving = {name for name in links if not (Path(folder) / name).resolve().is_relative_to(ground)}
    for name in sorted(leaving - hidden):
        logger.warning("%s: is a link that leaves the agent's folder, so it is not copied", Path(folder) / name)
    return hidden | leaving


def copy_agent(source: Path, target: Path) -> None:
    """Copy the files; hidden ones are not an agent's. A link that leaves the folder is left out, with a warning that names it,
    but for those of the Hub's cache, whose files are links to its own blobs.

    A plain chat model gets the settings with which `chat` would talk to it, so that a night learns from the same prompts.
    """
    try:
        shutil.copytree(source, target, ignore=partial(_left_out, _own_ground(source)))
    except shutil.Error as error:
        raise UserError(f"--agent: '{source}' cannot be copied: {error.args[0][0][2]}") from error
    if not (target / AGENT_FILE).exists() and (settings := chat_settings(target)):
        write_json(target / AGENT_FILE, settings)
