"""The history of audits: a JSON file that keeps all of them, so that a later one says what is new and what was closed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import read_json

FORMAT = 1


class Finding(BaseModel):
    """What an entry must say of a finding; it has all that the report says."""

    probe: str


class Entry(BaseModel):
    """One audit. config: which configuration; tried: the names of what it would have found."""

    config: str
    config_hash: str
    date: str
    settings: dict[str, Any]
    tried: list[str]
    findings: list[Finding]


class History(BaseModel):
    """The file."""

    format_version: int
    audits: list[Entry]


@dataclass(frozen=True)
class Changes:
    """Names of findings: those that no earlier audit left open, those that one did, and those that are gone."""

    new: list[str]
    open: list[str]
    closed: list[str]


def read_history(path: Path) -> dict[str, Any]:
    """What the file holds, in the form of `History`; nothing where there is no file yet. Raises UserError for another file."""
    if not path.exists():
        return {"format_version": FORMAT, "audits": []}
    advice = "; name the JSON of earlier audits, or a new file (rewards of your own are registered with --register)"
    history: dict[str, Any] = read_json(path, f"--history {path}: is not a history of audits: ", advice, History)
    if history["format_version"] != FORMAT:
        raise UserError(
            f"--history {path}: has format_version {history['format_version']}, and this version of rlhf-dialog reads "
            f"{FORMAT}; name a new file"
        )
    return history


def add(path: Path, entry: dict[str, Any]) -> Changes:
    """Write an `Entry` behind the others, the file as a whole or not at all. Raises UserError when it cannot be written."""
    history = read_history(path)
    changes = compared(history["audits"], entry)
    replace_json(path, {**history, "audits": [*history["audits"], entry]})
    return changes


def compared(earlier: list[dict[str, Any]], entry: dict[str, Any]) -> Changes:
    """What an audit changes; a finding stays open until an audit of the same configuration that tried it does not find it."""
    before: dict[str, None] = {}
    for one in earlier:
        if one["config"] == entry["config"]:
            names = dict.fromkeys(finding["probe"] for finding in one["findings"])
            before = {name: None for name in before if name not in one["tried"]} | names
    now = [finding["probe"] for finding in entry["findings"]]
    return Changes(
        new=[name for name in now if name not in before],
        open=[name for name in now if name in before],
        closed=[name for name in before if name in entry["tried"] and name not in now],
    )
