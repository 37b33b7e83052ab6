"""Answers while they are generated, and what of them is stored: one thread for each request, which several may follow."""

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from itertools import count

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.door.callers import Caller
from rlhf_dialog.feedback.door.dialogues import History, Place, find_place
from rlhf_dialog.feedback.door.requests import ApiError, ChatRequest
from rlhf_dialog.feedback.sessions.batched_generation import (
    Answering,
    AnsweringClosed,
    GeneratedAnswer,
    NoRoom,
    ReplyOptions,
)
from rlhf_dialog.feedback.sessions.http_requests import log_failure
from rlhf_dialog.feedback.store.store import Store, StoredTurn, TurnOrigin, is_heldout, plain_text

logger = logging.getLogger(__name__)
SOURCE = "api"
RETRY_AGE = 600.0  # seconds in which a client that repeats its request gets the answer of the first one
RETRY_WAIT = 10.0  # seconds in which a client comes back that lost its connection; the official one waits at most 8
CHAT_HEADERS = ("X-Session-Id", "X-OpenWebUI-Chat-Id")
MESSAGE_HEADER, TASK_HEADER = "X-Message-Id", "X-Task"
KEY_HEADER, RETRY_HEADER = "Idempotency-Key", "x-stainless-retry-count"
SEEDS = 1 << 63
NOT_STORED = "the answer could not be stored, so it does not count; ask again in a minute"


@dataclass(frozen=True)
class Context:
    """What the headers say of a request. `chat` and `message` are hashes of another program's ids."""

    chat: str | None = None
    message: str | None = None
    is_task: bool = False  # of a program, such as a title for the dialogue: answered, and never stored
    key: str | None = None  # the hash of what a repetition of the request has too
    is_named: bool = False  # whether the client has named that key
    is_repetition: bool = False  # whether the client wants the first request's answer, if there is one


def read_context(headers: Mapping[str, str], caller: Caller, request: ChatRequest, store: Store) -> Context:
    """The context of a request. A header whose template was not filled in (`{{TASK}}`) says nothing."""
    names = (*CHAT_HEADERS, MESSAGE_HEADER, TASK_HEADER, KEY_HEADER, RETRY_HEADER)
    found = {name: headers.get(name, "").strip() for name in names}
    session, chat, message, task, named, retries = (text if text[:2] != "{{" else "" for text in found.values())
    name = f"key {named}" if named else f"body {request.digest}" if retries else ""
    return Context(
        chat=store.hash_outside(session or chat) if session or chat else None,
        message=store.hash_outside(message) if message else None,
        is_task=bool(task),
        key=store.hash_outside(f"{caller.person} {caller.user} {name}") if name else None,
        is_named=bool(named),
        is_repetition=bool(named) or retries not in ("", "0"),
    )


class RunningAnswer:
    """The answers to one request: those so far, one for each choice; when it has `ended` they are stored, or there is an `error`.

    `sent` are those that a reader has got: their texts are stored if all readers leave.
    """

    def __init__(self, request: ChatRequest, context: Context):
        self.request, self.context = request, context
        self.id, self.created = secrets.token_hex(16), time.time()
        self.version: str | None = None  # what answers, once that is known
        self.answers = self.sent = (GeneratedAnswer(),) * request.num_choices
        self.error: ApiError | None = None
        self.ended = threading.Event()
        self.is_left = False  # nobody waits for it any more
        self._readers: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}
        self._numbers, self._changing = count(), threading.Lock()

    @classmethod
    def of_stored(
        cls, request: ChatRequest, context: Context, turns: Sequence[StoredTurn], answer: str
    ) -> "RunningAnswer":
        """One that has ended, from the turns of its choices."""
        running = cls(request, context)
        running.id, running.created, running.version = answer, turns[0].created, turns[0].version
        running.answers = tuple(_read_turn(turn) for turn in turns)
        running.ended.set()
        return running

    async def follow(self) -> AsyncGenerator[None, None]:
        """At once, and after each change, until it has ended."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        with self._changing:
            number = next(self._numbers)
            self._readers[number] = (loop, changed)
        try:
            while True:
                is_last = self.ended.is_set()
                yield
                if is_last:
                    return
                await changed.wait()
                changed.clear()
        finally:
            with self._changing:
                del self._readers[number]
            if self.request.keys.stream or self.context.key is None:
                self._stop_if_alone()
            else:  # the client has seen nothing, and comes back if it only lost its connection
                loop.call_later(RETRY_WAIT, self._stop_if_alone)

    def show(self, answers: Sequence[GeneratedAnswer]) -> None:
        """The answers have grown."""
        self.answers = tuple(answers)
        self._tell()

    def begin(self, version: str) -> None:
        """It is known what answers."""
        self.version = version
        self._tell()

    def end(self, error: ApiError | None) -> None:
        """The answers are stored, or there is an error."""
        self.error = error
        self.ended.set()
        self._tell()

    def _stop_if_alone(self) -> None:
        with self._changing:
            self.is_left = self.is_left or not self._readers

    def _tell(self) -> None:
        with self._changing:
            for loop, changed in self._readers.values():
                if not loop.is_closed():
                    loop.call_soon_threadsafe(changed.set)


def _read_turn(turn: StoredTurn) -> GeneratedAnswer:
    used = dict(turn.sampling or {})
    return GeneratedAnswer(
        text=turn.text,
        ids=tuple(turn.token_ids or ()),
        logprobs=tuple(turn.logprobs or ()),
        ended=True,
        truncated=bool(used.get("truncated")),
        num_prompt_ids=int(used.get("num_prompt_ids", 0)),
        sampling=used,
    )


class Answers:
    """The answers of a server. A request that repeats one joins the answer that runs, or gets the stored one."""

    def __init__(self, store: Store, answering: Answering):
        self._store, self._answering = store, answering
        self._running: set[RunningAnswer] = set()
        self._by_key: dict[str, RunningAnswer] = {}
        self._changing = threading.Lock()

    def begin(
        self,
        caller: Caller,
        request: ChatRequest,
        context: Context,
        version: str | None,
        slot: AbstractContextManager[object],
    ) -> RunningAnswer:
        """The answers to a request, which grow from now on, or those of the request that it repeats.

        `version` is the one that was asked for; None: the dialogue's own, or the champion. New answers hold a `slot` until they
        have ended. Raises ApiError, and UserError where the store cannot be read.
        """
        with self._changing:
            if context.key is not None and context.is_repetition:
                first = self._find_first(request, context)
                if first is not None:
                    return first
            held = ExitStack()
            held.enter_context(slot)
            running = RunningAnswer(request, context)
            self._running.add(running)
            if context.key is not None:
                self._by_key[context.key] = running
        threading.Thread(target=self._work, args=(caller, running, version, held), name="answer", daemon=True).start()
        return running

    def close(self) -> None:
        """End all answers; of those that still grow the text so far is stored."""
        with self._changing:
            growing = list(self._running)
        for running in growing:
            running.is_left = True
        self._answering.close()
        for running in growing:
            running.ended.wait()

    def _find_first(self, request: ChatRequest, context: Context) -> RunningAnswer | None:
        """The answers to the request that this one repeats. Raises ApiError, 422, for another body with the same key."""
        key = str(context.key)
        running = self._by_key.get(key)
        if running is not None and not running.is_left:
            _check_same(request, running.request.digest)
            return running
        stored = self._store.find_request(key)
        if stored is None:
            return None
        body, answer = stored
        _check_same(request, body)
        ids = [_choice_id(answer, number) for number in range(request.num_choices)]
        turns = [turn for turn in map(self._store.find_answer, ids) if turn is not None]
        if len(turns) < request.num_choices or (not context.is_named and time.time() - turns[0].created > RETRY_AGE):
            return None
        return RunningAnswer.of_stored(request, context, turns, answer)

    def _work(self, caller: Caller, running: RunningAnswer, version: str | None, held: ExitStack) -> None:
        error = None
        try:
            with held:
                self._answer(caller, running, version)
        except ApiError as refusal:
            error = refusal
        except NoRoom as refusal:
            error = ApiError(400, str(refusal), param="messages")
        except UserError as failure:
            logger.warning("an answer was not stored, and its reader was told: %s", failure)
            error = ApiError(503, NOT_STORED, "server_error", "not_stored", headers={"Retry-After": "2"})
        except Exception:  # of any kind; its text may hold what people said
            log_failure()
            error = ApiError(500, "the answer failed, and nothing of it is stored; ask again", "server_error")
        finally:
            with self._changing:
                self._running.discard(running)
                if self._by_key.get(running.context.key or "") is running:
                    del self._by_key[str(running.context.key)]
            running.end(error)

    def _answer(self, caller: Caller, running: RunningAnswer, asked: str | None) -> None:
        """Generate and store the answers. Raises ApiError, and UserError when they cannot be stored."""
        version = self._answering.begin(asked)
        try:
            if asked not in (None, version):
                raise ApiError(404, f"version {asked} does not load; ask for another one", code="model_not_found")
            history = self._read_history(running, version)
            place = Place(history.turns) if running.context.is_task else self._find_place(caller, history, version)
            if asked is None and place.version not in (None, version):
                own = self._answering.begin(place.version)
                self._answering.end(version)
                version = own
            answers = self._generate(running, place.turns, version)
            if not running.context.is_task:
                self._add(caller, running, history, place, answers)
        finally:
            self._answering.end(version)
        if not all(answer.ended for answer in answers):
            raise ApiError(503, "the client that asked for this answer has left; ask again", "server_error")

    def _read_history(self, running: RunningAnswer, version: str) -> History:
        """What the request says that was said, as it is stored: what people wrote as the model sees it."""
        history = History(running.request.turns, running.request.system, running.context.chat)
        texts = [
            self._answering.spoken(text, version) if history.is_of_user(position) else text
            for position, text in enumerate(history.turns)
        ]
        if not texts[-1]:
            raise ApiError(400, "messages: nothing of the last one is left that can be answered", param="messages")
        return replace(history, turns=tuple(texts))

    def _find_place(self, caller: Caller, history: History, version: str) -> Place:
        return find_place(self._store, caller, history, lambda text: self._answering.spoken(plain_text(text), version))

    def _generate(self, running: RunningAnswer, turns: Sequence[str], version: str) -> tuple[GeneratedAnswer, ...]:
        """The answers, as they are when all have ended or all readers have left."""
        request = running.request
        keys, choices = request.keys, range(request.num_choices)
        longest = keys.max_tokens if keys.max_completion_tokens is None else keys.max_completion_tokens
        options = ReplyOptions(keys.temperature, keys.top_p, longest, request.stops, request.system)
        seeds = [None if keys.seed is None else (keys.seed + number) % SEEDS for number in choices]
        with ExitStack() as open_streams:
            streams = []
            for seed in seeds:
                streams.append(self._answering.stream(turns, version, seed, options))
                open_streams.callback(streams[-1].close)
            running.begin(version)
            answers = running.answers
            while not running.is_left and not all(answer.ended for answer in answers):
                try:
                    growing = zip(answers, streams, strict=True)
                    answers = tuple(answer if answer.ended else next(stream) for answer, stream in growing)
                except AnsweringClosed:
                    if not running.is_left:
                        raise
                running.show(answers)
        if not all(answer.ended for answer in answers) and request.keys.stream:
            return running.sent
        return answers

    def _add(
        self, caller: Caller, running: RunningAnswer, history: History, used: Place, answers: Sequence[GeneratedAnswer]
    ) -> None:
        """Store the question and its answers, all or nothing, in the dialogue where they belong by now."""
        store, context, version, position = self._store, running.context, str(running.version), len(used.turns)
        with store.writing():
            place = self._find_place(caller, history, version)
            if place.dialogue is not None and place.turns != used.turns:  # it only reads as what the model was given
                place = Place(used.turns, heldout=is_heldout(place.dialogue))
            dialogue = place.dialogue
            if dialogue is None:
                parts = {"system": history.system, "user": caller.user, "chat": context.chat}
                dialogue = store.begin(caller.person, SOURCE, heldout=place.heldout, **parts)
                for number, text in enumerate(used.turns[:-1]):
                    speaker = "user" if history.is_of_user(number) else "agent"
                    store.add_turn(dialogue, number, speaker, text, is_copy=True)
            if not place.is_again:
                store.add_turn(dialogue, position - 1, "user", used.turns[-1])
            # the dialogue goes on with what is written last: the first choice
            for number, answer in reversed(list(enumerate(answers))):
                store.add_turn(
                    dialogue,
                    position,
                    "agent",
                    answer.text,
                    _origin(answer, version),
                    answer=_choice_id(running.id, number),
                    message=None if number else context.message,
                    is_stopped=not answer.ended,
                )
            if context.key is not None and all(answer.ended for answer in answers):
                store.add_request(context.key, running.request.digest, running.id)


def _origin(answer: GeneratedAnswer, version: str) -> TurnOrigin:
    """What `_read_turn` reads again."""
    sampling = {**answer.sampling, "num_prompt_ids": answer.num_prompt_ids}
    sampling |= {"truncated": True} if answer.truncated else {}
    return TurnOrigin(list(answer.ids), list(answer.logprobs), sampling, version)


def _choice_id(answer: str, number: int) -> str:
    return f"{answer}-{number}" if number else answer


def _check_same(request: ChatRequest, digest: str) -> None:
    if request.digest != digest:
        raise ApiError(422, f"{KEY_HEADER}: was used for another request; give each request its own key")
