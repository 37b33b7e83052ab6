"""Which stored dialogue a request goes on with: it brings the whole history, of which the store knows what the bot said."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sqlite3 import Row
from typing import Any

from rlhf_dialog.feedback.door.callers import Caller
from rlhf_dialog.feedback.store.examples import turns_before
from rlhf_dialog.feedback.store.store import CHANGES, Store

MOST_CANDIDATES = 100  # dialogues with the same last message of the user, the newest first
CANDIDATES = """SELECT id, heldout FROM dialogues WHERE person = :person
    AND (SELECT hash FROM users WHERE dialogue = dialogues.id) IS :user
    AND (:chat IS NULL OR (SELECT hash FROM chats WHERE dialogue = dialogues.id) = :chat)
    AND EXISTS (SELECT 1 FROM turns WHERE dialogue = dialogues.id AND position = :position AND text = :text)
    AND (:last IS NULL OR (SELECT max(position) FROM turns WHERE dialogue = dialogues.id) IN (:last, :last + 2))
    ORDER BY started DESC, rowid DESC LIMIT :most"""


@dataclass(frozen=True)
class History:
    """What a request says that was said, as it is stored; the last turn is the user's, the one before it the agent's, and so on.

    `chat` is the hash of another program's id of the dialogue, None where it gave none.
    """

    turns: tuple[str, ...]
    system: str | None = None
    chat: str | None = None

    def is_of_user(self, position: int) -> bool:
        return (len(self.turns) - position) % 2 == 1


@dataclass(frozen=True)
class Place:
    """Where an answer belongs: behind the `turns`, which the model reads, in a dialogue (None: a new one).

    `version` is that of the dialogue's last answer. `is_again`: its last turn is stored already, and has an answer. `heldout`
    says of a new dialogue that it must be held out, or must not; None: as chance has it.
    """

    turns: tuple[str, ...]
    dialogue: str | None = None
    version: str | None = None
    is_again: bool = False
    heldout: bool | None = None


def find_place(store: Store, caller: Caller, history: History, spoken: Callable[[str], str]) -> Place:
    """The newest dialogue of the caller that goes on exactly as the history says, or a new one.

    A first message begins a new one, and so does what leaves the line of a dialogue: an edit, another answer to an earlier turn,
    a history from elsewhere. A new one is held out as the dialogue with which it shares most. `spoken` is what is compared of a
    text.
    """
    keys = [spoken(text) for text in history.turns]
    before = len(keys) - 1
    user_turns = [position for position in range(before) if history.is_of_user(position)]
    if not user_turns:
        return Place(history.turns)
    newest = user_turns[-1]
    for dialogue in _candidates(store, caller, history, newest, last=before - 1, chat=history.chat):
        if store.system(dialogue["id"]) != history.system:
            continue
        turns, events = _read(store, dialogue["id"])
        length = 1 + max(turn["position"] for turn in turns)
        said = turns_before(turns, _coming(min(length, before + 1)), events)
        if [spoken(text) for text in said] == keys[: len(said)] and len(said) == min(length, before + 1):
            last = max((turn for turn in turns if turn["version"]), key=lambda turn: int(turn["id"]), default=None)
            version, is_again = last["version"] if last else None, length > before
            read = said if is_again else (*said, history.turns[-1])
            return Place(read, dialogue["id"], version, is_again)
    return Place(history.turns, heldout=_is_heldout(store, caller, history, keys, user_turns[0], spoken))


def _is_heldout(
    store: Store, caller: Caller, history: History, keys: Sequence[str], first: int, spoken: Callable[[str], str]
) -> bool | None:
    """Whether the dialogue is held out that has most of the turns before the last one, a question and an answer at least."""
    longest, is_heldout = max(first + 1, 1), None
    for dialogue in _candidates(store, caller, history, first):
        turns, events = _read(store, dialogue["id"])
        texts: dict[int, set[str]] = defaultdict(set)
        positions = {turn["id"]: turn["position"] for turn in turns}
        for turn in turns:
            texts[turn["position"]].add(spoken(turn["text"]))
        for event in events:
            if event["kind"] in CHANGES and event["text"] and event["turn"] in positions:
                texts[positions[event["turn"]]].add(spoken(event["text"]))
        shared = next((i for i, key in enumerate(keys[:-1]) if key not in texts[i]), len(keys) - 1)
        if shared > longest:
            longest, is_heldout = shared, bool(dialogue["heldout"])
        elif shared == longest and is_heldout is not None:
            is_heldout = is_heldout or bool(dialogue["heldout"])
    return is_heldout


def _candidates(
    store: Store, caller: Caller, history: History, position: int, last: int | None = None, chat: str | None = None
) -> list[Row]:
    """The caller's dialogues with the history's text at a position, which end at the position `last`, or an answer later."""
    values = {"person": store.hash_person(caller.person), "user": caller.user, "chat": chat, "last": last}
    return store.rows(
        CANDIDATES, {**values, "position": position, "text": history.turns[position], "most": MOST_CANDIDATES}
    )


def _read(store: Store, dialogue: str) -> tuple[list[Row], list[Row]]:
    statement = "SELECT id, position, text, version, created FROM turns WHERE dialogue = ? ORDER BY position, id"
    turns = store.rows(statement, (dialogue,))
    return turns, store.rows("SELECT * FROM feedback WHERE dialogue = ? ORDER BY id", (dialogue,))


def _coming(position: int) -> Any:
    """An answer that is not given yet, for `turns_before`."""
    return {"id": math.inf, "created": math.inf, "position": position}
