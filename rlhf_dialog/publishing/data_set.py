"""The data set of a card, with its licence where it is known, and how text of others is put into a card."""

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_dialog.data.sources import is_hub_name
from rlhf_dialog.publishing.privacy import hide_names, hide_private

DAILY_DIALOG = re.compile(r"daily[ _-]?dialog", re.IGNORECASE)
NUM_VALIDATION = 1000  # dialogues of the published validation split
FILL_IN = "**Please fill in**: whose data these are, and under which licence"


@dataclass(frozen=True)
class DataSet:
    """What a card says of the data; `hub_name` where the Hub has them, `licence` as the Hub spells it, or `other`."""

    name: str
    text: str
    licence: str = "other"
    hub_name: str | None = None
    language: str | None = None

    @property
    def type(self) -> str:
        """The name as an identifier, for `model-index`."""
        return self.hub_name or re.sub(r"[^\w.-]+", "-", self.name)


def describe_data_set(path: str | None, local_names: Collection[str] = ()) -> DataSet:
    """The data set at `path` of a configuration: DailyDialog by its name or its original layout and size, or one unknown.

    `local_names` are on the machine that made the model, whatever they look like here.
    """
    if path and _is_daily_dialog(path):
        text = (
            "DailyDialog (Li et al., 2017): everyday English dialogues with acts. Licence: CC BY-NC-SA 4.0, so not for "
            "commercial use, with attribution, and under the same licence."
        )
        return DataSet("DailyDialog", text, "cc-by-nc-sa-4.0", "li2017dailydialog/daily_dialog", "en")
    if path and path not in local_names and is_hub_name(path):
        return DataSet(
            path, f"`{path}` of the Hugging Face Hub. {FILL_IN} (see the data set's own card).", hub_name=path
        )
    name = hide_names(str(hide_private(path)), local_names) if path else "unknown"
    return DataSet(name or "unknown", f"{code(name or 'unknown')}. {FILL_IN}.")


def _is_daily_dialog(path: str) -> bool:
    place = Path(os.path.expanduser(path))
    if any(DAILY_DIALOG.search(part) for part in place.parts[-2:]):
        return True
    file = place / "validation" / "dialogues_validation.txt"
    if not file.is_file():
        return False
    try:
        with file.open("rb") as lines:
            return sum(1 for line in lines if line.strip()) == NUM_VALIDATION
    except OSError:
        return False


CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def code(value: Any) -> str:
    r"""The value as a code span on one line, with control characters as escapes.

    >>> code("<EOU>\n")
    '`<EOU>\\n`'
    """
    text = CONTROL.sub(lambda match: repr(match[0])[1:-1], str(value))
    mark = "`" * (_longest(text) + 1)
    return f"{mark} {text} {mark}" if "`" in text else f"{mark}{text}{mark}"


def cell(value: Any) -> str:
    """`code` for a cell of a table."""
    return code(value).replace("|", r"\|")


def code_block(text: str, language: str) -> str:
    """A block of code whose fence is longer than each row of backticks in it."""
    mark = "`" * max(3, _longest(text) + 1)
    return f"{mark}{language}\n{text}\n{mark}"


def _longest(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
