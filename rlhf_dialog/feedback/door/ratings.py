"""What people think of an answer, sent to the API: stored, taken back; and a person who is forgotten."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlhf_dialog.feedback.door.callers import UNKNOWN, Caller
from rlhf_dialog.feedback.door.requests import ApiError, as_refusal
from rlhf_dialog.feedback.sessions.chat_session import SCORES
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.examples import JUDGEMENTS
from rlhf_dialog.feedback.store.store import ANSWER_ID, CHANGES, Event, Rating, Store, StoredTurn, plain_text

PREFIX = "chatcmpl-"
THUMBS = {"up": 1, "down": -1}
SAYS = ("thumb", "score", "correction", "preferred")
APART = (("thumb", "score", "preferred"), ("correction", "preferred"))  # of each, one request has one at most


class RatingKeys(BaseModel):
    """What a request says of an answer; null is as if a key was not there."""

    model_config = ConfigDict(strict=True, extra="forbid")

    id: str
    thumb: Literal["up", "down"] | None = None
    score: Annotated[int, Field(ge=SCORES[0], le=SCORES[-1])] | None = None
    reason: str | None = None
    correction: str | None = None
    preferred: str | None = None
    user: Any = None


def rate(store: Store, caller: Caller, body: Any, most_chars: int, spoken: Callable[[str], str]) -> dict[str, Any]:
    """Store what a request says of an answer, and return the reply: how many events were added.

    What the caller's newest feedback on the answer says already adds none. `spoken` is a text as the model sees it. Raises
    ApiError: 400 with what to do; 404, the same one, for any answer that this caller may not rate.
    """
    asked = _read(body, most_chars)
    better = None if asked.correction is None else spoken(asked.correction)
    with store.writing():
        turn = _find(store, caller, asked.id)
        own = _own_feedback(store, caller, turn)
        edits = {event.turn: event.text for event in own if event.kind == "edit"}
        wanted = []
        if asked.thumb is not None:
            wanted.append(Rating("thumb", turn.id, THUMBS[asked.thumb], asked.reason or None))
        if asked.score is not None:
            wanted.append(Rating("score", turn.id, asked.score))
        if better is not None:
            if better in ("", turn.text):
                raise _wrong("correction", "is empty, or the answer itself; write what the answer should be")
            wanted.append(Rating("edit", turn.id, text=better))
        if asked.preferred is not None:
            wanted.append(_prefer(_find(store, caller, asked.preferred), turn, edits))
        new = [rating for rating in wanted if not _stands(store, rating, own)]
        if turn.id in edits and better is None and any(rating.kind in JUDGEMENTS for rating in new):
            raise _wrong("id", "you have corrected this answer, so it is known what you think of it; DELETE that first")
        for rating in new:
            store.add_feedback(turn.dialogue, caller.person, rating)
    return {"object": "feedback", "id": asked.id, "added": len(new)}


def withdraw(store: Store, caller: Caller, name: str) -> dict[str, Any]:
    """Take back all of the caller's feedback on an answer, and return the reply. Raises ApiError, 404."""
    with store.writing():
        turn = _find(store, caller, name)
        about = [event for event in _own_feedback(store, caller, turn) if turn.id in (event.turn, event.other)]
        for event in about:
            back = Rating("withdrawn", event.turn, text=event.kind, other=event.other)
            store.add_feedback(turn.dialogue, caller.person, back)
    return {"object": "feedback.deleted", "id": name, "deleted": True, "withdrawn": len(about)}


def forget(bot: Bot, store: Store, caller: Caller, body: Any) -> dict[str, Any]:
    """Remove all that is stored of the caller, or of the user that a gateway names, and return the reply.

    Raises ApiError: 400, 401; and UserError as `Bot.forget`.
    """
    if caller.role in ("owner", "visitor"):
        raise ApiError(401, "only a key says who you are; send yours, or ask the bot's owner to forget you")
    if not isinstance(body, Mapping) or body.get("confirm") != "forget":
        raise _wrong("confirm", 'this removes all that is stored of you; send {"confirm": "forget"} if you want that')
    if caller.person == UNKNOWN and caller.user is None:  # it would be everybody whom no gateway has named
        raise _wrong("user", "say which user is to be forgotten, by X-OpenWebUI-User-Id or user")
    done = bot.forget(store.hash_person(caller.person), caller.user)
    return {"object": "person.deleted", "deleted": True, "rows": done["rows"]}


def _read(body: Any, most_chars: int) -> RatingKeys:
    """What a request says, checked, with plain texts. Raises ApiError."""
    if isinstance(body, Mapping) and "rating" in body:  # 1 is a thumb up in Open WebUI, and would be the worst score
        raise _wrong("rating", 'is not read, because it can mean both: send thumb ("up" or "down") or score (1 to 5)')
    try:
        asked = RatingKeys.model_validate(body)
    except ValidationError as error:
        raise as_refusal(error) from None
    said = asked.model_dump(exclude_none=True)
    for keys in APART:
        if len(together := [key for key in keys if key in said]) > 1:
            raise _wrong(" and ".join(together), "send one of them, or two requests")
    if "reason" in said and "thumb" not in said:
        raise _wrong("reason", "belongs to a thumb; send both together")
    if not said.keys() & set(SAYS):
        raise _wrong("the body", f"says nothing of the answer; send one of {', '.join(SAYS)}")
    texts: dict[str, Any] = {key: plain_text(said[key]) for key in ("reason", "correction") if key in said}
    for key, text in texts.items():
        if len(text) > most_chars:
            raise _wrong(key, f"has {len(text):,} characters; send at most {most_chars:,} (api_rating_chars)")
    return asked.model_copy(update=texts)


def _find(store: Store, caller: Caller, name: str) -> StoredTurn:
    """The answer of this id. Raises ApiError, the same one where there is none and where the caller may not rate it."""
    number = name.removeprefix(PREFIX)
    turn = store.find_answer(number) if re.fullmatch(ANSWER_ID, number) else None
    if turn is None or not _may_rate(store, caller, turn):
        raise ApiError(404, "there is no answer with this id that you can rate", code="not_found", param="id")
    return turn


def _may_rate(store: Store, caller: Caller, turn: StoredTurn) -> bool:
    """Whether the bot gave the answer, in this dialogue, to the caller: to anybody for teachers.

    The owner of the machine is one person, whichever users a program of theirs has named.
    """
    if store.rows("SELECT 1 FROM copies WHERE turn = ?", (turn.id,)):
        return False
    if caller.role == "teacher":
        return True
    statement = "SELECT (SELECT hash FROM users WHERE dialogue = id) FROM dialogues WHERE id = ? AND person = ?"
    rows = store.rows(statement, (turn.dialogue, store.hash_person(caller.person)))
    return bool(rows) and (caller.role == "owner" or rows[0][0] == caller.user)


def _own_feedback(store: Store, caller: Caller, turn: StoredTurn) -> list[Event]:
    """The caller's feedback that counts on the answer's dialogue, by id."""
    person = store.hash_person(caller.person)
    return [event for event in store.feedback(dialogue=turn.dialogue) if event.person == person]


def _prefer(better: StoredTurn, other: StoredTurn, edits: Mapping[int | None, str | None]) -> Rating:
    """A choice. As in `ChatSession.choose`, a person who has corrected the better answer prefers their own text."""
    if better.id == other.id:
        raise _wrong("preferred", "is the answer itself; id is the answer that is not as good")
    if (better.dialogue, better.position) != (other.dialogue, other.position):
        raise _wrong("preferred", "answers another message; only answers to the same one are compared")
    text = edits.get(better.id)
    return Rating("choice", better.id, other=other.id) if text is None else Rating("edit", other.id, text=text)


def _stands(store: Store, rating: Rating, own: list[Event]) -> bool:
    """Whether a person's newest feedback of this sort says the same already.

    Of thumbs and scores that is the newest one on the answer. An edit or a choice is newer feedback of this sort if the dialogue
    goes on with another text after it.
    """
    if rating.kind in JUDGEMENTS:
        newest = [event for event in own if event.kind in JUDGEMENTS and event.turn == rating.turn][-1:]
        return any(_columns(event) == _columns(rating) for event in newest)
    position = "SELECT position FROM turns WHERE id = ?"
    for event in reversed([event for event in own if event.kind in CHANGES]):
        if _columns(event) == _columns(rating):
            return True
        goes_on_alike = (event.text or event.turn) == (rating.text or rating.turn)
        if not goes_on_alike and store.rows(position, (event.turn,)) == store.rows(position, (rating.turn,)):
            return False
    return False


def _columns(one: Event | Rating) -> tuple[Any, ...]:
    return one.kind, one.turn, one.value, one.text, one.other


def _wrong(key: str, what: str) -> ApiError:
    return ApiError(400, f"{key}: {what}", param=key)
