"""Which half of which training dialogues a model learned from, as the report.json in its folder says."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from rlhf_dialog.found_files import check_files
from rlhf_dialog.json_files import FAULTS, load_json

KEY = "learned_half"
Half = Literal["all", "reward", "judge"]


@dataclass(frozen=True)
class LearnedHalf:
    """A half of `data.split_halves`."""

    assignment: str  # the hash of the whole assignment: data and rule
    part: str  # "reward" or "judge"


def learned_half(folder: str | Path) -> LearnedHalf | None:
    """What the report beside a model says; None where it says nothing."""
    check_files(folder)
    try:
        said = load_json(Path(folder).expanduser() / "report.json")[KEY]
        return LearnedHalf(**TypeAdapter(dict[str, str]).validate_python(said, strict=True))
    except FAULTS:
        return None


def are_apart(first: LearnedHalf | None, second: LearnedHalf | None) -> bool:
    """Whether two models are known to have learned from different halves of the same dialogues."""
    if first is None or second is None or first.assignment != second.assignment:
        return False
    return {first.part, second.part} == {"reward", "judge"}
