"""The connections of a page: who sends no whole request is cut off, the oldest first where connections run short."""

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rlhf_dialog.feedback.page.tally import Tally

# How long a header, a body or the next request may take to arrive, and an answer to be read.
SECONDS = {"header": 10.0, "body": 30.0, "idle": 30.0, "reading": 60.0}
A_ROUND = 4  # connections taken before those that were taken are looked at
QUEUE = 1024  # connections that wait in the kernel
MOST = 4096
SHORT = "connections run short: one without a whole request, or a new one, was closed"
FAILED = "a connection could not be taken"


class Room:
    """The connections that wait for who is at their other end, and for what, in the order in which that began."""

    def __init__(self, size: int, tally: Tally, clock: Callable[[], float] = time.monotonic):
        self.size, self._tally, self._clock = size, tally, clock
        self._waiting: dict[Any, tuple[str, float]] = {}

    def note(self, connection: Any, kind: str | None) -> None:
        """What a connection waits for now; None: for nothing."""
        if kind is None or self._waiting.get(connection, ("", 0.0))[0] != kind:
            self._waiting.pop(connection, None)
        if kind is not None:
            self._waiting.setdefault(connection, (kind, self._clock()))

    def make(self, number: int) -> None:
        """Close the oldest of those that wait where there are `number` connections in all; who reads an answer, last."""
        oldest = (
            one for last in (False, True) for one, (kind, _) in self._waiting.items() if (kind == "reading") == last
        )
        for connection in list(islice(oldest, max(number - self.size, 0))):
            self._tally.add(SHORT)
            self._close(connection)

    def close_late(self) -> None:
        """Close those that have waited longer than SECONDS."""
        now = self._clock()
        for connection in [one for one, (kind, since) in self._waiting.items() if now - since >= SECONDS[kind]]:
            self._close(connection)

    def _close(self, connection: Any) -> None:
        self.note(connection, None)
        connection.connections.discard(connection)
        connection.transport.abort()  # also where what was written is never read


class Connection(H11Protocol):
    """uvicorn's connection; a Room knows what it waits for."""

    def __init__(self, room: Room, **given: Any):
        super().__init__(**given)
        self._room = room

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._note()
        self._room.make(len(self.connections))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._note()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._note()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._room.note(self, None)

    def _note(self) -> None:
        self._room.note(self, self._waits_for())

    def _waits_for(self) -> str | None:
        state = self.conn.their_state
        if self.flow.write_paused:
            return "reading"
        if self.transport.is_closing():
            return "idle"
        if state is h11.IDLE:
            return "header" if self.cycle is None or self.conn.trailing_data[0] else "idle"
        return "body" if state is h11.SEND_BODY else None


class PageServer(uvicorn.Server):
    """uvicorn's server of an application that has a method `end`."""

    def __init__(self, app: Any, seconds_to_end: int):
        self._app, self._tally = app, Tally()
        self._room = Room(most_connections(), self._tally)
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=partial(Connection, self._room),  # type: ignore[arg-type]  # called as a class is
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=A_ROUND,
            timeout_graceful_shutdown=seconds_to_end,
        )
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(self._tally)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._app.end()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: Any = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._failed)
        await super().startup(sockets)
        for one in sockets or []:
            one.listen(QUEUE)

    async def on_tick(self, counter: int) -> bool:
        self._room.close_late()
        return await super().on_tick(counter)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "accept" not in context["message"]:
            return loop.default_exception_handler(context)
        reason = getattr(context.get("exception"), "errno", None) or errno.EIO
        self._tally.add(f"{FAILED} ({os.strerror(reason)})")


def most_connections() -> int:
    """Half of the files that this process may still open; the other half is for the store and the models."""
    with suppress(ImportError, OSError):
        import resource  # not on Windows

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return MOST if limit < 0 else max(8, min(MOST, (limit - len(os.listdir("/dev/fd"))) // 2))
    return MOST // 8
