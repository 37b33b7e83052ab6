"""CamRest676's dialogues: rows with pairs of turns under `dial`, their acts, and the goal that the user was given."""

from collections.abc import Iterable, Iterator
from typing import Any

from rlhf_dialog.data.sources.record import DialogueRecord, checked_record
from rlhf_dialog.errors import UserError

KEY = "dial"
ASKED = "?"  # the value of a slot that is requested


def read_dialogues(rows: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[DialogueRecord]:
    """Every row is a dialogue, which the user begins and the system ends.

    `meta` has `goal` (`text`, `constraints`, `requests`) and `dialogue_acts`: for each turn its acts as text, such as
    `inform(food=thai) request(phone)`, empty where none is annotated. Raises UserError for a row without these parts.
    """
    for where, row in rows:
        try:
            pairs = [(pair["usr"], pair["sys"]) for pair in row[KEY]]
            turns = [text for user, system in pairs for text in (user["transcript"], system["sent"])]
            acts = [_acts(side["dialog_act"]) for pair in pairs for side in pair]
            goal = {"text": row["goal"]["text"], "constraints": row["goal"]["info"], "requests": row["goal"]["reqt"]}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{where}: is not a dialogue of CamRest676: {type(error).__name__}: {error}; wanted '{KEY}' with `usr` and "
                "`sys` in each item, and 'goal'"
            ) from None
        yield checked_record(turns, None, where, meta={"goal": goal, "dialogue_acts": acts})


def _acts(annotated: dict[str, list[list[str]]]) -> str:
    found = [(intent, slot, value) for intent, pairs in annotated.items() for slot, value in pairs]
    return " ".join(
        f"{intent}({slot})" if value == ASKED else f"{intent}({slot}={str(value).lower()})"
        for intent, slot, value in found
    )
