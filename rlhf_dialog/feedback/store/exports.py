"""Feedback to files: our own JSONL, whole, or the columns that TRL's KTO and DPO trainers take."""

import json
from collections.abc import Iterable
from pathlib import Path

from rlhf_dialog.atomic_files import replace_file
from rlhf_dialog.data.sources.rows import Row
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.examples import read_examples
from rlhf_dialog.feedback.store.formats import native, trl
from rlhf_dialog.feedback.store.store import Store

FORMATS = ("jsonl", *trl.NEEDED)


def export_rows(store: Store, form: str, without_heldout: bool = False) -> list[Row]:
    """The rows of an export.

    `jsonl`: a dialogue a row, with everything that is stored of it. `kto` and `dpo`: what counts now, in TRL's columns, as
    messages, `without_heldout` dialogues or with them. Raises UserError when there is none.
    """
    if form == "jsonl":
        rows = native.export_rows(store)
    else:
        examples = [one for one in read_examples(store).all if not (without_heldout and one.heldout)]
        rows = trl.export_rows(examples, form)
    if not rows:
        what = {"jsonl": "dialogues", "kto": "liked or disliked answers", "dpo": "edits or choices"}[form]
        raise UserError(f"{store.path}: there are no {what} to export yet")
    return rows


def write_jsonl(path: Path, rows: Iterable[Row]) -> None:
    """One JSON object a line, whole or not at all. Raises UserError when the file cannot be written."""
    replace_file(path, "".join(f"{json.dumps(row, ensure_ascii=False, allow_nan=False)}\n" for row in rows))
