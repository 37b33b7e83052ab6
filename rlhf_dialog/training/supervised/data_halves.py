"""The training pairs of one half of the dialogues, so that the model of a reward and the judge of an evaluation share none."""

from collections.abc import Callable

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.learned_half import Half, LearnedHalf
from rlhf_dialog.data.sources import NO_COLUMNS, load_records
from rlhf_dialog.data.sources.columns import Columns
from rlhf_dialog.data.split_halves import divide
from rlhf_dialog.errors import UserError


def of_half(
    pairs: list[Dialogue],
    half: Half,
    data_path: str,
    report: Callable[[str], None],
    columns: Columns = NO_COLUMNS,
) -> tuple[list[Dialogue], LearnedHalf | None]:
    """Those pairs of the train split whose dialogue is in the half, and what the report of a model says of it.

    All pairs, and None, for `all`. Raises UserError when the half has no pair.
    """
    if half == "all":
        return pairs, None
    halves = divide(load_records(data_path, "train", columns))
    chosen = [pair for pair in pairs if halves.parts[pair.meta["dialogue"]] == half]
    if not chosen:
        raise UserError(
            f"half: no pair of turns of '{data_path}' is in the {half}'s half of the train split; use half: all, or more data"
        )
    report(f"train: {len(chosen)} of them are in the {half}'s half of the dialogues")
    return chosen, LearnedHalf(halves.assignment, half)
