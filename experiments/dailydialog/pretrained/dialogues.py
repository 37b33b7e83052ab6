"""DailyDialog as whole dialogues: chat messages for the pretrained model, and the judges' half for a small one."""

import json
from pathlib import Path
from typing import Any

from experiments.dailydialog.scene import Scene
from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.data.sources import SPLITS, load_records
from rlhf_dialog.data.split_halves import JUDGE, divide


def write(scene: Scene) -> None:
    """`whole`, every dialogue as messages, and `judge_half`, of which the judges learn; both with all three splits."""
    folder = scene.dialogues
    for split in SPLITS:
        records = load_records(str(scene.data), split)
        messages = [{"messages": as_messages(one.turns, number)} for number, one in enumerate(records)]
        parts = divide(records).parts if split == "train" else [JUDGE] * len(records)
        half = [{"dialog": one.turns} for one, part in zip(records, parts, strict=True) if part == JUDGE]
        write_rows(folder / "whole" / f"{split}.jsonl", messages)
        write_rows(folder / "judge_half" / f"{split}.jsonl", half)


def as_messages(turns: list[str], number: int) -> list[dict[str, str]]:
    """The turns in alternating roles, of which the assistant's are learned: in every second dialogue the other person's."""
    roles = ("assistant", "user") if number % 2 and len(turns) > 2 else ("user", "assistant")
    return [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
