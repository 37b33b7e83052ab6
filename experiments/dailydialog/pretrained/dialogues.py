"""DailyDialog as whole dialogues: chat messages for the pretrained model."""

import json
from pathlib import Path
from typing import Any

from experiments.dailydialog.work import Work
from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.data.sources import SPLITS, load_records


def write(work: Work) -> None:
    """`whole`, every dialogue as messages, with all three splits, where they are not there."""
    for split in SPLITS:
        if (work.dialogues / "whole" / f"{split}.jsonl").is_file():
            continue
        records = load_records(str(work.data), split)
        rows = [{"messages": as_messages(one.turns, number)} for number, one in enumerate(records)]
        write_rows(work.dialogues / "whole" / f"{split}.jsonl", rows)


def as_messages(turns: list[str], number: int) -> list[dict[str, str]]:
    """The turns in alternating roles, of which the assistant's are learned: in every second dialogue the other person's."""
    roles = ("assistant", "user") if number % 2 and len(turns) > 2 else ("user", "assistant")
    return [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
