"""The dialogues that pages have open: one for each page of a person; those that rest longest make room for others."""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.page.batched_generation import Answering
from rlhf_dialog.feedback.page.chat_session import ChatSession
from rlhf_dialog.feedback.store.limits import PageLimits
from rlhf_dialog.feedback.store.store import Store

PATIENCE = 1.0  # seconds; an answer takes longer, a rating does not
SOURCE = "page"


@dataclass(eq=False)
class _OpenSession:
    talk: ChatSession
    busy: threading.Lock = field(default_factory=threading.Lock)


class OpenSessions:
    """The ChatSessions of a server, by person (their random id) and page (a browser's tab). Threads may share it.

    A page says which dialogue it shows. When that is not in memory (the server was restarted, or others needed the room), it is
    opened again from the store, and goes on with the champion of today.
    """

    def __init__(self, store: Store, answering: Answering, limits: PageLimits):
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
        key = (person, page)
        opened = self._wait_and_take(key, dialogue)
        if opened is None:
            talk = self._begin(person, dialogue)  # may load a model: others go on meanwhile
            with self._lock:
                opened = self._take(key, dialogue) or self._replace(key, talk)
        try:
            yield opened.talk
        finally:
            opened.busy.release()

    def close(self, person: str, page: str | None = None) -> None:
        """The page shows nothing any more; without `page`, all pages of the person."""
        with self._lock:
            for key in [one for one in self._open if one[0] == person and page in (None, one[1])]:
                self._open.pop(key).talk.end()

    def close_page(self, page: str) -> None:
        """A tab was closed, or loaded again."""
        with self._lock:
            for key in [one for one in self._open if one[1] == page]:
                self._open.pop(key).talk.end()

    def _take(self, key: tuple[str, str], dialogue: str) -> _OpenSession | None:
        """What the page has open, now busy; None when that is not `dialogue`. Raises UserError when it is busy."""
        opened = self._open.get(key)
        if opened is not None and opened.busy.locked():
            raise UserError("the answer is not finished; wait for it")
        if opened is None or (opened.talk.dialogue or "") != dialogue:
            return None
        self._open.move_to_end(key)
        opened.busy.acquire()
        return opened

    def _wait_and_take(self, key: tuple[str, str], dialogue: str) -> _OpenSession | None:
        """As `_take`; what is busy for a moment, with a rating just before this one, is waited for."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with self._lock:
                    return self._take(key, dialogue)
            except UserError:
                if time.monotonic() > until:
                    raise
            time.sleep(PATIENCE / 40)

    def _begin(self, person: str, dialogue: str) -> ChatSession:
        if dialogue:
            return ChatSession.reopen(self._store, self._answering, person, SOURCE, dialogue)
        return ChatSession(self._store, self._answering, person, SOURCE)

    def _replace(self, key: tuple[str, str], talk: ChatSession) -> _OpenSession:
        """Put a ChatSession, busy, in the place of a page's last one; let others leave when there are too many."""
        if key in self._open:
            self._open.pop(key).talk.end()
        opened = self._open[key] = _OpenSession(talk)
        opened.busy.acquire()
        of_person = [one for one in self._open if one[0] == key[0]]
        self._drop(of_person, len(of_person) - self._limits.person_talks)
        self._drop(list(self._open), len(self._open) - self._limits.talks)
        return opened

    def _drop(self, keys: list[tuple[str, str]], number: int) -> None:
        """Let `number` of the talks leave, those first that rested longest; one that is being answered stays."""
        resting = [key for key in keys[:-1] if not self._open[key].busy.locked()]
        for key in resting[: max(number, 0)]:
            self._open.pop(key).talk.end()
