"""The files of a row: replies, and the numbers of each prompt, from which a table takes its intervals."""

import json
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.errors import UserError

if TYPE_CHECKING:
    from rlhf_dialog.evaluation.measure import Measured
    from rlhf_dialog.evaluation.replies import Replies

BLOCK, POOLED, ABOUT, UNITS = "block:", "pooled:", "about:", "dialogues"  # beginnings of the names of arrays


@dataclass(frozen=True)
class RowFile:
    """NAME.npz and NAME.replies.jsonl in a folder."""

    folder: Path
    name: str

    @property
    def numbers(self) -> Path:
        return self.folder / f"{self.name}.npz"

    @property
    def texts(self) -> Path:
        return self.folder / f"{self.name}.replies.jsonl"

    def is_there(self) -> bool:
        return self.numbers.is_file()

    def replies(self) -> list[dict[str, Any]] | None:
        """`response`, `truncated` and `tokens` of each prompt; None where they are not there."""
        if not self.texts.is_file():
            return None
        return [json.loads(line) for line in self.texts.read_text(encoding="utf-8").splitlines()]

    def keep(self, answers: "Replies") -> None:
        """Write the replies."""
        pairs = zip(answers.dialogues, answers.num_tokens, strict=True)
        rows = [{"response": one.response, "truncated": one.truncated, "tokens": count} for one, count in pairs]
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_text(self.texts, "".join(json.dumps(row) + "\n" for row in rows))

    def write(self, measured: "Measured", about: dict[str, float]) -> None:
        """Write the numbers."""
        arrays: dict[str, Any] = dict(measured.per_prompt)
        arrays |= {f"{BLOCK}{name}": values for name, values in measured.per_block.items()}
        arrays |= {f"{POOLED}{name}": one.rows for name, one in measured.pooled.items()}
        arrays |= {f"{ABOUT}{name}": np.asarray(number) for name, number in about.items()}
        if measured.dialogues is not None:
            arrays[UNITS] = measured.dialogues
        buffer = BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        hidden = self.folder / f".{self.name}.npz"
        hidden.write_bytes(buffer.getvalue())
        hidden.replace(self.numbers)

    def read(self) -> dict[str, Any]:
        """Every array by its name. Raises UserError for a file that cannot be read."""
        try:
            with np.load(self.numbers, allow_pickle=False) as arrays:
                return dict(arrays)
        except (OSError, ValueError) as error:
            raise UserError(f"{self.numbers}: cannot be read: {error}; remove it, and run the stage again") from error
