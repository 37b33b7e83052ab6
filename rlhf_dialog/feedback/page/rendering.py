"""What a page shows of a dialogue: one message after the other, two answers where they are to be compared; as texts and HTML."""

import html
import re
import time
from dataclasses import dataclass
from typing import Any

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.sessions.chat_session import ChatSession
from rlhf_dialog.feedback.store.store import Store, StoredTurn
from rlhf_dialog.terminal import visible

CONSENT = (
    "What you write and how you rate it is stored to train this bot. You are known by a random number in a cookie, and by "
    "nothing else; <b>Forget me</b> removes all that is yours."
)
GREETING = "Say something. Then rate the answers: thumbs, the flag for a reason, the arrow for another answer."
CHANGED = "the dialogue has changed, in another tab perhaps; this is what it is now, and nothing was saved of what you just did"
JOINER = "\u2060"
REASONS = ("Not true", "Off topic", "Unkind", "Too long", "Repeats itself")  # of a dislike


@dataclass(frozen=True)
class RatedMessage:
    """One message, and how this person rated it."""

    turn: StoredTurn
    text: str  # the better one where the answer was edited
    liked: bool | None = None
    reason: str | None = None

    @property
    def is_answer(self) -> bool:
        return self.turn.speaker == "agent"


def list_messages(talk: ChatSession) -> list[RatedMessage]:
    """The messages of a dialogue, oldest first; of answers to one message the one that it goes on with, or two to compare."""
    events = talk.events()
    thumbs = {event.turn: event for event in events if event.kind == "thumb"}
    edits = {event.turn: str(event.text) for event in events if event.kind == "edit"}
    pair = find_pair_to_compare(talk)
    messages = []
    for position in sorted(talk.texts):
        is_compared = bool(pair) and pair[0].position == position
        for turn in pair if is_compared else [_turn_at(talk, position, edits)]:
            text = edits.get(turn.id, turn.text) if is_compared else talk.texts[position]
            thumb = thumbs.get(turn.id)
            liked = None if thumb is None else thumb.value == 1
            messages.append(RatedMessage(turn, text, liked, None if thumb is None else thumb.text))
    return messages


def find_pair_to_compare(talk: ChatSession) -> list[StoredTurn]:
    """The two last answers to the last message when nobody has said which is better, else nothing.

    After a choice, another answer is compared with the one that was chosen; after an edit, with what was written.
    """
    answers = talk.alternatives()
    if len(answers) < 2:
        return []
    events = talk.events()
    choices = [event for event in events if event.kind == "choice"]
    compared = {number for event in choices for number in (event.turn, event.other)}
    compared |= {event.turn for event in events if event.kind == "edit"}
    new = [turn for turn in answers if turn.id not in compared or not turn.id]
    if not new:
        return []
    best = [turn for turn in answers if choices and turn.id == choices[-1].turn]
    return [*best, new[-1]] if best else answers[-2:]


def _turn_at(talk: ChatSession, position: int, edits: dict[int | None, str]) -> StoredTurn:
    """What the dialogue goes on with at a position."""
    if talk.last is not None and talk.last.position == position:
        return talk.last
    at = [turn for turn in talk.turns if turn.position == position]
    same = [turn for turn in at if talk.texts[position] in (turn.text, edits.get(turn.id))]
    return (same or at)[-1]


def gradio_message(speaker: str, text: str) -> dict[str, str]:
    return {"role": "user" if speaker == "user" else "assistant", "content": escape_text(text)}


def escape_text(text: str) -> str:
    """What Gradio, which reads a message as HTML, shows as `text`; control characters are written out.

    An invisible character after each `<` and `&` that would begin a tag or an entity makes them text. Entities in their place
    would be seen by who copies an answer.
    """
    return re.sub(r"<(?=[A-Za-z/!?])|&(?=[A-Za-z#])", rf"\g<0>{JOINER}", visible(text))


def gradio_messages(items: list[RatedMessage], is_compared: bool = False) -> list[Any]:
    """The messages as Gradio wants them; the last two have their number above them where they are to be compared."""
    labels = [""] * (len(items) - 2) + ["First:\n", "Second:\n"] if is_compared else [""] * len(items)
    return [gradio_message(one.turn.speaker, label + one.text) for label, one in zip(labels, items, strict=True)]


def split_introduction(text: str) -> tuple[str, list[str]]:
    """What the agent says that it is, and the examples after `Try:`.

    >>> split_introduction("A waiter. Try: Tea, please. | The bill?")
    ('A waiter.', ['Tea, please.', 'The bill?'])
    """
    title, _, examples = text.partition("Try:")
    lines = [line.strip() for line in examples.split("|")]
    return title.strip() or text, [line for line in lines if line]


def thumb_label(item: RatedMessage) -> str | None:
    """Which of Gradio's thumbs or reasons is lit."""
    if item.liked is None:
        return None
    return "Like" if item.liked else item.reason if item.reason in REASONS else "Dislike"


def describe_versions(talk: ChatSession, items: list[RatedMessage]) -> str:
    """Which versions wrote the answers, and which one goes on."""
    others = sorted({str(one.turn.version) for one in items if one.is_answer} - {talk.version})
    before = f"; before it, version {', '.join(others)} did" if others else ""
    return html.escape(f"Version {talk.version} answers{before}.")


def note_html(text: str) -> str:
    """A line of HTML that says what was done."""
    return f'<p role="status">{html.escape(visible(text))}</p>' if text else ""


def problem_html(error: UserError) -> str:
    """A line of HTML that says why something was not done."""
    text = str(error)
    return f'<p role="alert">{html.escape(visible(text[:1].upper() + text[1:]))}.</p>'


def list_dialogues(store: Store, person: str) -> list[tuple[str, str]]:
    """The dialogues of a person (their random id): what a list shows of each, and its id."""
    return [
        (f"{shorten(words)}, {time.strftime('%d %b %H:%M', time.localtime(one.started))}", one.id)
        for one, words in store.list_dialogues(person)
    ]


def shorten(words: str, length: int = 32) -> str:
    """The beginning of a text on one line."""
    text = " ".join(visible(words).split())
    return text if len(text) <= length else f"{text[: length - 1]}…"
