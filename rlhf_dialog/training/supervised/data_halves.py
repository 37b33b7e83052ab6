"""Halves of the training dialogues, so that the model of a reward and the judge of an evaluation share none."""

from collections.abc import Callable

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.training.supervised.settings import Half

REMAINDERS = {"even": 0, "odd": 1}


def of_half(pairs: list[Dialogue], half: Half, data_path: str, report: Callable[[str], None]) -> list[Dialogue]:
    """Those pairs whose dialogue is at an even or odd place of the split (from 0). Raises UserError when there are none."""
    if half == "all":
        return pairs
    chosen = [pair for pair in pairs if pair.meta["dialogue"] % 2 == REMAINDERS[half]]
    if not chosen:
        raise UserError(
            f"half: no pair of turns of '{data_path}' is in a dialogue at an {half} place of the train split; "
            "use half: all, or more data"
        )
    report(f"train: {len(chosen)} of them are in the {half} dialogues")
    return chosen
