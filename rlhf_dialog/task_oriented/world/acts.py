"""Dialogue acts: what a turn says, without its words."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

NOTATION = re.compile(r"(\w+)\(([^()=]*)(?:=(.*?))?\)(?=\s+\w+\(|\s*$)", re.DOTALL)
USER_INTENTS = (
    *("hello", "thankyou", "ack", "bye", "inform", "request", "reqalts", "reqmore", "confirm", "affirm", "negate"),
    *("deny", "repeat", "null"),
)


@dataclass(frozen=True)
class Act:
    """One act; a turn is a list of them. The first one names what the turn does, the others add to it.

    The user: `inform food=thai` with an empty slot answers what was asked; `affirm` and `inform area=north` is "yes, in the
    north"; `deny food=thai` and `inform food=greek` is "not Thai, Greek"; `reqalts` asks for something else.
    The system: `inform name=X` offers X, and the acts behind it are about X; `inform name=none` says that nothing fits, and
    `except name=X` behind it: nothing but X. `null` is nothing that can be understood.
    """

    intent: str
    slot: str = ""
    value: str = ""

    def __str__(self) -> str:
        value = f"{self.slot}={self.value}" if self.value else self.slot
        return f"{self.intent}({value})"


def format_acts(acts: Iterable[Act]) -> str:
    """The acts in one line.

    >>> format_acts([Act("affirm"), Act("inform", "area", "north")])
    'affirm() inform(area=north)'
    """
    return " ".join(map(str, acts))


def parse_acts(text: str) -> list[Act]:
    """The acts of a line of `format_acts`; what is between them is left out.

    >>> parse_acts("affirm() inform(area=north)")
    [Act(intent='affirm', slot='', value=''), Act(intent='inform', slot='area', value='north')]
    """
    return [Act(intent, slot, value) for intent, slot, value in NOTATION.findall(text)]
