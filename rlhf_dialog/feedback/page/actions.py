"""What the buttons of a page do with a ChatSession; each returns the sentence that says what was saved, or raises UserError."""

from collections.abc import Iterator
from typing import Any

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.page.chat_session import ChatSession
from rlhf_dialog.feedback.page.rendering import REASONS, RatedMessage, find_pair_to_compare, list_messages
from rlhf_dialog.feedback.store.limits import PageLimits, check_length


def again(talk: ChatSession) -> Iterator[str]:
    """Another answer to the last message, growing."""
    if find_pair_to_compare(talk):
        raise UserError("say first which of the two answers is better")
    return talk.again()


def thumb(talk: ChatSession, index: Any, liked: Any) -> str:
    """At Gradio's index of a message: a thumb (True, False), a reason of the flag (text), a thumb taken back (empty)."""
    item = _answer_at(talk, index)
    if liked in ("", None):
        talk.withdraw("thumb", turn=item.turn.id)
        return "Saved: your thumb is taken back."
    is_liked, reason = liked is True, str(liked) if liked in REASONS else ""
    if (item.liked, item.reason or "") != (is_liked, reason):  # Gradio sends a reason twice
        talk.thumb(is_liked, reason, turn=item.turn.id)
    said = "you like this answer" if is_liked else "you do not like this answer"
    return f"Saved: {said}{f' ({reason.lower()})' if reason else ''}."


def draft(talk: ChatSession) -> str:
    """The text of the last answer, to begin a better one with."""
    if talk.last is None or find_pair_to_compare(talk):
        raise UserError("there is not yet one answer to edit")
    return talk.texts[talk.last.position]


def edit(talk: ChatSession, better: Any, limits: PageLimits) -> str:
    """A better answer than the last one."""
    talk.edit(check_length(str(better or ""), limits, "the answer"))
    return "Saved: the dialogue goes on with your answer."


def choose(talk: ChatSession, number: int) -> str:
    """The first (0) or the second (1) of two answers is better."""
    if not (pair := find_pair_to_compare(talk)):
        raise UserError("there is only one answer; ask for another one first")
    places = [turn.id for turn in talk.alternatives()]
    talk.choose(places.index(pair[number].id) + 1)
    return f"Saved: the {('first', 'second')[number]} answer is better; the dialogue goes on with it."


def score(talk: ChatSession, value: Any) -> str:
    """1 to 5 for the last answer."""
    talk.score(_number(value))
    return f"Saved: {value} of 5 for the last answer."


def score_dialogue(talk: ChatSession, value: Any) -> str:
    """1 to 5 for the whole dialogue."""
    talk.score_dialogue(_number(value))
    return f"Saved: {value} of 5 for this dialogue."


def _answer_at(talk: ChatSession, index: Any) -> RatedMessage:
    """What is shown at Gradio's index of a message. Raises UserError unless it is an answer."""
    items = list_messages(talk)
    place = index[0] if isinstance(index, (list, tuple)) else index
    if not isinstance(place, int) or not 0 <= place < len(items) or items[place].turn.speaker != "agent":
        raise UserError("only the bot's answers can be rated")
    return items[place]


def _number(value: Any) -> int:
    if value is None:
        raise UserError("choose a number from 1 to 5")
    return int(value)
