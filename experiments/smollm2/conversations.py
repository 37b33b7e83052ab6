"""Conversations of people as dialogues: what one of them says in a row is one turn."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.smollm2.wheels import opened
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import parse_json

DATA = "chitchat_dataset/dataset.json"
SHARES = {"test": 5, "validation": 5}  # percent of the conversations; the rest is train


def write_chitchat(wheel: Path, folder: Path) -> str:
    """`train.jsonl`, `validation.jsonl` and `test.jsonl`; returns what was written, in words. Raises UserError for damage."""
    rows: dict[str, list[Any]] = {split: [] for split in ("train", "validation", "test")}
    dialogues = dialogues_of(wheel)
    for name, turns in dialogues.items():
        if len(turns) > 1:
            rows[split_of(name)].append({"dialog": turns, "conversation": name})
    left_out = len(dialogues) - sum(map(len, rows.values()))
    return f"{write_splits(rows, folder)} conversations; {left_out} with fewer than two turns left out"


def dialogues_of(wheel: Path) -> dict[str, list[str]]:
    """The turns of each conversation, in the order of their names. Raises UserError for damage."""
    with opened(wheel) as archive:
        try:
            conversations: dict[str, Any] = parse_json(archive.read(DATA))
            return {name: turns_of(one["messages"]) for name, one in sorted(conversations.items())}
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise UserError(f"{wheel} is damaged: {DATA}: {error!r}; remove it, and fetch again") from error


def write_splits(rows: dict[str, list[Any]], folder: Path) -> str:
    """A JSON Lines file of each split; returns how many rows each has, in words."""
    for split, some in rows.items():
        lines = [json.dumps(row, ensure_ascii=False) for row in some]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ", ".join(f"{len(some)} {split}" for split, some in rows.items())


def turns_of(messages: list[list[dict[str, str]]]) -> list[str]:
    """The turns: all that one person says until another one speaks, joined by spaces; white space is collapsed."""
    spoken: list[tuple[str, list[str]]] = []
    for sender, text in _said(messages):
        if not spoken or spoken[-1][0] != sender:
            spoken.append((sender, []))
        spoken[-1][1].append(text)
    return [" ".join(texts) for _, texts in spoken]


def _said(messages: list[list[dict[str, str]]]) -> Iterator[tuple[str, str]]:
    for group in messages:
        for message in group:
            if text := " ".join(message["text"].split()):
                yield message["sender"], text


def split_of(name: str) -> str:
    """The split of a conversation, by a hash of its name: the same for each fetch, and beside any others."""
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 100
    for split, share in SHARES.items():
        if place < share:
            return split
        place -= share
    return "train"
