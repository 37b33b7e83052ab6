"""One person's dialogue with a bot: what is said and rated, stored as it happens. The terminal and the page use it."""

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.sessions.batched_generation import Answering, GeneratedAnswer
from rlhf_dialog.feedback.store.store import CHANGES, Event, Rating, Store, StoredTurn, TurnOrigin

_SAVING = threading.Lock()  # between looking for what others have added, and adding
UNSTORED = 0  # the id of a turn that is not on disk yet
SCORES = range(1, 6)


class SessionChanged(UserError):
    """The dialogue has gone on elsewhere, in another tab for example: nothing was stored of what was just said or rated."""

    def __init__(self) -> None:
        super().__init__("this dialogue has gone on in another tab; open it again")


class ChatSession:
    """One dialogue of one person, with the version that it began with.

    Every method that stores returns after it is on disk. An answer is shown even if it cannot be stored: then `problem`
    says why, and the turns are stored together with the next ones. Feedback that cannot be stored is a UserError, and so is any
    without a store. What says or rates raises SessionChanged when the dialogue in the store is not the one that is known here.

    One thread at a time uses it, but for thumbs: one that holds `changing` may rate stored answers while another answer grows.
    """

    def __init__(self, store: Store | None, answering: Answering, person: str, source: str):
        """`person` is their random id, `source` where they speak: terminal, page. Raises UserError when no version loads."""
        self.store, self.answering, self.person, self.source = store, answering, person, source
        self.version = answering.begin()
        self._release = weakref.finalize(self, answering.end, self.version)
        self._release.atexit = False
        self.changing = threading.RLock()  # held while turns are added
        self._clear()

    def _clear(self) -> None:
        self.dialogue: str | None = None  # its id, once something is stored
        self.turns: list[StoredTurn] = []  # everything that was said, alternatives too, in the order of writing
        self.texts: dict[int, str] = {}  # by position: what the dialogue goes on with
        self.last: StoredTurn | None = None  # the answer that the dialogue goes on with
        self.problem: str | None = None  # why the newest turns are not on disk
        self.grows = False  # whether an answer does
        # `place` before the newest answer, until the dialogue goes on with another text
        self.asked_at: str | None = None
        self._seen = (0, 0)  # the newest turn, and the newest edit or choice, that are known of the store's

    @property
    def state(self) -> str:
        """What is known of the dialogue in the store, in short."""
        return "{}.{}".format(*self._seen)

    @property
    def place(self) -> str:
        """What a page sends to say what it shows: the dialogue's id and `state`, "" for a new one."""
        return f"{self.dialogue} {self.state}" if self.dialogue else ""

    @classmethod
    def reopen(cls, store: Store, answering: Answering, person: str, source: str, dialogue: str) -> "ChatSession":
        """A stored dialogue of this person, which goes on with the champion of today.

        Raises UserError when the person has no such dialogue.
        """
        if not store.rows("SELECT 1 FROM dialogues WHERE (id, person) = (?, ?)", (dialogue, store.hash_person(person))):
            raise UserError("you have no such dialogue; begin a new one")
        talk = cls(store, answering, person, source)
        talk._seen = _newest(store, dialogue)  # before what is read: what comes meanwhile is not known
        talk.dialogue, talk.turns = dialogue, store.turns(dialogue)
        talk._read_texts(store)
        if sorted(talk.texts) != list(range(len(talk.texts))):
            raise UserError("a turn of this dialogue is missing in the store; begin a new one")
        return talk

    def say(self, text: str) -> Iterator[str]:
        """The growing answer to `text`. Raises UserError when nothing is left of `text` without what would end a turn."""
        message = self.spoken(text)
        if not message:
            raise UserError("there is nothing to answer; write a message")
        position = len(self.texts)
        user = StoredTurn(UNSTORED, "", position, "user", message, None, None, None, None, time.time())
        return self._answer([*(self.texts[i] for i in range(position)), message], [user])

    def spoken(self, text: str) -> str:
        """`text` as the model sees it, and as it is stored: a space replaces what would end a turn."""
        return self.answering.spoken(text, self.version)

    def again(self) -> Iterator[str]:
        """Another answer to the same turn; the dialogue goes on with it. Raises UserError when there is one like it already."""
        position = self._last_answer().position
        return self._answer([self.texts[i] for i in range(position)], [])

    def alternatives(self) -> list[StoredTurn]:
        """The answers to the last turn, in the order in which they were written."""
        if self.last is None:
            return []
        return [turn for turn in self.turns if turn.position == self.last.position]

    def choose(self, number: int) -> None:
        """Prefer one of `alternatives`, counted from 1, to the others; the dialogue goes on with it.

        Of an answer that was edited the better text is what people see: preferred, it is stored as an edit of the others.
        """
        self._last_answer()
        answers = self.alternatives()
        if len(answers) < 2:
            raise UserError("there is only one answer; ask for another one first")
        if not 1 <= number <= len(answers):
            raise UserError(f"there are {len(answers)} answers; choose 1 to {len(answers)}, not {number}")
        places = [place for place, turn in enumerate(self.turns) if turn.position == answers[0].position]
        chosen = places.pop(number - 1)
        self._save()
        better = self._find_edit(self.turns[chosen])
        for other in places:
            if better is None:
                self._rate("choice", chosen, other=self.turns[other].id)
            else:
                self._rate("edit", other, text=better)
        self._continue_with(self.turns[chosen], better)

    def thumb(self, liked: bool, reason: str = "", turn: int | None = None) -> None:
        """Like or dislike an answer (the last one). Raises UserError when the person has edited it: they see their own text."""
        self._rate("thumb", self._find_unedited(turn), value=1 if liked else -1, text=reason.strip() or None)

    def score(self, value: int | None) -> None:
        """Give the last answer 1 to 5: 4 and 5 are liked, 1 and 2 disliked. Raises UserError as `thumb`."""
        self._rate("score", self._find_unedited(None), value=_check_score(value))

    def edit(self, text: str, turn: int | None = None) -> None:
        """Store a better answer; the dialogue goes on with it. Raises UserError when it is empty or the same."""
        place, better = self._place(turn), self.spoken(text)
        if not better or better == self.turns[place].text:
            raise UserError("the better answer is empty or the same; write what the answer should be")
        self._rate("edit", place, text=better)
        self.texts[self.turns[place].position] = better

    def score_dialogue(self, value: int | None) -> None:
        self._last_answer()
        self._rate("dialogue_score", None, value=_check_score(value))

    def withdraw(self, kind: str, turn: int | None = None) -> None:
        """Take the feedback of one kind on an answer back; of an edit or a choice, the dialogue goes on without it."""
        self._rate("withdrawn", self._place(turn), text=kind)
        if kind in CHANGES:
            self._read_texts(self._require_store())

    def events(self) -> list[Event]:
        """This person's feedback on the dialogue that counts, by id."""
        if self.store is None or self.dialogue is None:
            return []
        person = self.store.hash_person(self.person)
        return [event for event in self.store.feedback(dialogue=self.dialogue) if event.person == person]

    def ratings(self) -> dict[int | None, dict[str, float | str | None]]:
        """This person's feedback on the dialogue that counts: of each turn (None: the dialogue), by kind, value or text."""
        of_turns: dict[int | None, dict[str, float | str | None]] = {}
        for event in self.events():
            of_turns.setdefault(event.turn, {})[event.kind] = event.text if event.kind == "edit" else event.value
        return of_turns

    def why(self) -> str:
        """What the last answer came from: its version, the sampling, and how likely its words were."""
        answer = self._last_answer()
        if not (answer.token_ids and answer.logprobs):
            return "It is not known how this answer was generated."
        name = "The agent" if self.answering.bot is None else f"Version {answer.version}"
        used = answer.sampling or {}
        how = "taking the most likely word each time"
        if not used.get("greedy"):
            numbers = [f"temperature {used.get('temperature', 1):g}"]
            numbers += [f"top_k {used['top_k']}"] if used.get("top_k") else []
            numbers += [f"top_p {used['top_p']:g}"] if used.get("top_p", 1) < 1 else []
            how = f"drawing its words at {', '.join(numbers)}"
        mean, rarest = math.exp(math.fsum(answer.logprobs) / len(answer.logprobs)), math.exp(min(answer.logprobs))
        return (
            f"{name} answered, {how}. Its {len(answer.logprobs)} "
            f"token{'s' * (len(answer.logprobs) > 1)} had a probability of {mean:.1%} on average, the rarest {rarest:.1%}."
        )

    def forget(self) -> int:
        """Remove everything of this person from the bot, and begin a new dialogue; returns the number of rows removed."""
        bot = self.answering.bot
        if self.store is None or bot is None:
            raise UserError("this agent stores nothing, so there is nothing to forget")
        rows = int(bot.forget(self.store.hash_person(self.person))["rows"])
        self._clear()
        return rows

    def end(self) -> None:
        """The dialogue is over: its version may leave the memory. A second call changes nothing."""
        self._release()

    def _answer(self, turns: list[str], user: list[StoredTurn]) -> Iterator[str]:
        """Stream the answer to `turns`; when it is whole, it and what the `user` said are remembered and stored."""
        if self._has_changed():
            raise SessionChanged
        last_text, answer = None, None
        with self.changing:
            self.grows, self.asked_at = True, self.place
        try:
            with contextlib.closing(self.answering.stream(turns, self.version)) as answers:
                for answer in answers:
                    if answer.text != last_text or answer.ended:
                        last_text = answer.text
                        yield answer.text
            assert answer is not None  # a stream ends with its answer, or raises
            with self.changing:
                self._add_answer(answer, len(turns), user)
        finally:
            with self.changing:
                self.grows = False

    def _add_answer(self, answer: GeneratedAnswer, position: int, user: list[StoredTurn]) -> None:
        """Remember and store an answer that is whole, after what the `user` said."""
        if not user and answer.text in [turn.text for turn in self.alternatives()]:
            why = "it takes the most likely word each time" if answer.sampling.get("greedy") else "ask once more"
            raise UserError(f"the bot gave the same answer again; {why}")
        said = StoredTurn(
            UNSTORED,
            dialogue="",
            position=position,
            speaker="agent",
            text=answer.text,
            token_ids=list(answer.ids),
            logprobs=list(answer.logprobs),
            sampling=answer.sampling,
            version=self.version,
            created=time.time(),
        )
        for turn in (*user, said):
            self.turns.append(turn)
            self._continue_with(turn)
        if self.store is not None:
            try:
                self._save()
            except UserError as error:
                self.problem = str(error)

    def _read_texts(self, store: Store) -> None:
        """What the dialogue goes on with: of each position the text that was written, chosen or edited last."""
        by_id = {turn.id: turn for turn in self.turns}
        texts: list[tuple[StoredTurn, float, str | None]] = [(turn, turn.created, None) for turn in self.turns]
        for event in store.feedback(dialogue=self.dialogue):
            if event.turn in by_id and event.kind in CHANGES:
                texts.append((by_id[event.turn], event.created, event.text))
        for turn, _, text in sorted(texts, key=lambda one: (one[0].position, one[1])):
            self._continue_with(turn, text)

    def _continue_with(self, turn: StoredTurn, text: str | None = None) -> None:
        self.texts[turn.position] = turn.text if text is None else text
        if turn.speaker == "agent":
            self.last = turn

    def _save(self) -> None:
        """Store the turns that are not on disk yet, in their order. Raises UserError when one cannot be stored."""
        store = self._require_store()
        with _explain_errors("this dialogue is not stored, so it cannot be rated"), _SAVING:
            if self._has_changed():
                raise SessionChanged
            self.dialogue = self.dialogue or store.begin(self.person, self.source)
            for place, turn in enumerate(self.turns):
                if turn.id == UNSTORED:
                    origin = TurnOrigin(turn.token_ids, turn.logprobs, turn.sampling, turn.version)
                    number = store.add_turn(self.dialogue, turn.position, turn.speaker, turn.text, origin)
                    self._seen = (number, self._seen[1])
                    self.turns[place] = replace(turn, id=number, dialogue=self.dialogue)
                    self.last = self.turns[place] if turn is self.last else self.last
        self.problem = None

    def _rate(self, kind: str, place: int | None, **columns: Any) -> None:
        """Store one event, after what it is about: the answer at `place` of `turns`, or the dialogue."""
        self._save()
        turn = None if place is None else self.turns[place].id
        with _explain_errors("your feedback was not stored"):
            number = self._require_store().add_feedback(str(self.dialogue), self.person, Rating(kind, turn, **columns))
        if kind in CHANGES or (kind == "withdrawn" and columns["text"] in CHANGES):
            self._seen, self.asked_at = (self._seen[0], number), None

    def _has_changed(self) -> bool:
        """Whether somebody else has added to the dialogue. False where the store cannot be read or has forgotten it."""
        if self.store is None or self.dialogue is None:
            return False
        with contextlib.suppress(UserError):
            return _newest(self.store, self.dialogue) not in (self._seen, (0, 0))
        return False

    def _require_store(self) -> Store:
        if self.store is None:
            raise UserError(
                "this agent learns nothing from feedback; make a bot of it: python -m rlhf_dialog.feedback init --run runs/bot "
                "--agent DIR, then talk to runs/bot"
            )
        return self.store

    def _last_answer(self) -> StoredTurn:
        if self.last is None:
            raise UserError("there is no answer yet; say something first")
        return self.last

    def _place(self, turn: int | None) -> int:
        """Where in `turns` the answer with this id is, or the last one."""
        last = self._last_answer()
        answers = [i for i, one in enumerate(self.turns) if one.speaker == "agent"]
        found = [i for i in answers if (self.turns[i] is last if turn is None else self.turns[i].id == turn)]
        if not found:
            raise UserError("this dialogue has no such answer")
        return found[0]

    def _find_unedited(self, turn: int | None) -> int:
        """As `_place`. Raises UserError when the person has written another text for the answer, which is what they see."""
        place = self._place(turn)
        if self._find_edit(self.turns[place]) is not None:
            raise UserError(
                "you wrote this answer, and your edit says already that it is better than the bot's; rate an answer before "
                "you edit it, or ask for another one"
            )
        return place

    def _find_edit(self, turn: StoredTurn) -> str | None:
        """What the person wrote in the place of an answer."""
        return cast(str | None, self.ratings().get(turn.id, {}).get("edit"))


@contextlib.contextmanager
def _explain_errors(what: str) -> Iterator[None]:
    """Raises UserError that begins with `what` when the store refuses, or no longer knows the dialogue."""
    try:
        yield
    except SessionChanged:
        raise
    except UserError as error:
        raise UserError(f"{what}: {error}") from error
    except ValueError as error:
        raise UserError(f"{what}: the dialogue is no longer in the store; begin a new one") from error


def _newest(store: Store, dialogue: str) -> tuple[int, int]:
    """The newest turn of a dialogue, and the newest event that changes what it goes on with; 0 where there is none."""
    turns = "SELECT coalesce(max(id), 0) FROM turns WHERE dialogue = ?"
    changes = f"kind IN {CHANGES} OR kind = 'withdrawn' AND text IN {CHANGES}"
    events = f"SELECT coalesce(max(id), 0) FROM feedback WHERE dialogue = ? AND ({changes})"
    ((turn, event),) = store.rows(f"SELECT ({turns}), ({events})", (dialogue, dialogue))
    return turn, event


def _check_score(value: int | None) -> int:
    if value is None or value not in SCORES:
        raise UserError(f"a score is 1, 2, 3, 4 or 5, not {value}")
    return value
