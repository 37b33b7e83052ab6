"""The dialogues that pages have open: one for each page of a person; those that rest longest make room for others."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.sessions.batched_generation import Answering
from rlhf_dialog.feedback.sessions.chat_session import ChatSession
from rlhf_dialog.feedback.store.settings import PageKeys
from rlhf_dialog.feedback.store.store import Store

PATIENCE = 1.0  # seconds; an answer takes longer, a rating does not
SOURCE = "page"


@dataclass(eq=False)
class _OpenSession:
    talk: ChatSession | None = None
    busy: threading.Lock = field(default_factory=threading.Lock)


class OpenSessions:
    """The ChatSessions of a server, by person (their random id) and page (a browser's tab). Threads may share it.

    A page says which dialogue it shows. When that is not in memory (the server was restarted, or others needed the room), it is
    opened again from the store, and goes on with the champion of today.
    """

    def __init__(self, store: Store, answering: Answering, limits: PageKeys):
        self._store, self._answering, self._limits = store, answering, limits
        self._open: OrderedDict[tuple[str, str], _OpenSession] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def talk(self, person: str, page: str, dialogue: str) -> Iterator[ChatSession]:
        """The ChatSession of a page for the length of the block; `dialogue` is the id that it shows, "" for a new one.

        Raises UserError when the page still waits for another answer after `PATIENCE`, and when the person has no such dialogue.
        """
        with self._lock:
            opened = self._open.setdefault((person, page), _OpenSession())
            self._open.move_to_end((person, page))
            self._make_room(person)
        if not opened.busy.acquire(timeout=PATIENCE):
            raise UserError("the answer is not finished; wait for it")
        try:
            if opened.talk is None or (opened.talk.dialogue or "") != dialogue:
                if dialogue:  # a model may be loaded: others go on meanwhile
                    talk = ChatSession.reopen(self._store, self._answering, person, SOURCE, dialogue)
                else:
                    talk = ChatSession(self._store, self._answering, person, SOURCE)
                if opened.talk is not None:
                    opened.talk.end()
                opened.talk = talk
            yield opened.talk
        finally:
            opened.busy.release()

    def find(self, person: str, page: str) -> ChatSession | None:
        """The ChatSession that a page has open, at once: an answer may grow in it."""
        with self._lock:
            opened = self._open.get((person, page))
        return None if opened is None else opened.talk

    def close(self, person: str | None = None, page: str | None = None) -> None:
        """End the dialogues of this person and this page (None: of any)."""
        with self._lock:
            for key in list(self._open):
                if person in (None, key[0]) and page in (None, key[1]):
                    self._drop(key)

    def _make_room(self, person: str) -> None:
        """Let those leave that rested longest, of this person and of all; one that is being answered stays."""
        limits = self._limits
        for owner, most in ((person, limits.page_person_open_dialogues), (None, limits.page_open_dialogues)):
            keys = [key for key in self._open if owner in (None, key[0])]
            resting = [key for key in keys[:-1] if not self._open[key].busy.locked()]
            for key in resting[: max(len(keys) - most, 0)]:
                self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        talk = self._open.pop(key).talk
        if talk is not None:
            talk.end()
