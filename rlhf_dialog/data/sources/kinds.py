"""The kinds of columns that rows have, and the names that each is known by. docs/DATA.md shows them to users."""

from collections.abc import Iterable
from typing import Any

NAMES = {
    "messages": ("dialog", "dialogue", "utterances", "turns", "messages", "conversation", "conversations"),
    "utterance": ("utterance", "text", "content", "value"),
    "role": ("role", "from", "speaker"),
    "speaker": ("role", "from", "speaker"),
    "act": ("act", "acts", "act_label_text", "act_label"),
    "dialog_id": ("dialog_id", "dialogue_id", "conversation_id", "conv_id", "id"),
    "prompt": ("prompt", "question", "instruction"),
    "reference": ("reference", "response", "completion", "answer", "output"),
    "references": ("references",),
    "system": ("system", "system_prompt", "system_message"),  # a text, or a list of texts
    "history": ("history", "context"),  # the turns before a prompt
    "input": ("input", "context"),  # what follows an instruction, after a blank line
    "parent": ("parent_id", "parent", "reply-to", "reply_to"),  # of the rows of a tree
    "message_id": ("message_id", "id"),
    **{name: (name,) for name in ("chosen", "rejected", "margin")},
}
SIDES = ("chosen", "rejected")  # the two replies of a pair


def find(row: dict[str, Any], *kinds: str) -> str | None:
    """The first column of these kinds that has a value in `row`, in the order of NAMES; else as `first_filled`."""
    names = NAMES[kinds[0]] if len(kinds) == 1 else [name for kind in kinds for name in NAMES[kind]]
    return first_filled(names, row)


def first_filled(keys: Iterable[str], row: dict[str, Any]) -> str | None:
    """The first of `keys` that has a value in `row`; else the first that is present (as null); else None."""
    empty = None
    for key in keys:  # of each message of each row
        if row.get(key) is not None:
            return key
        if empty is None and key in row:
            empty = key
    return empty
