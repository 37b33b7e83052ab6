"""What page and API ask of a request before they read it, and how they log one that failed."""

import logging
import re
import sys
import traceback
from collections.abc import Collection

from starlette.requests import Request
from starlette.types import Message, Receive

logger = logging.getLogger(__name__)
THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
HOST = re.compile(r"([\w.-]+|\[[0-9a-f:.]+\])(:\d+)?", re.IGNORECASE | re.ASCII)


def is_sent_to(request: Request, names: Collection[str]) -> bool:
    """Whether a request was sent to one of these host names.

    A site that lets its own name lead to this machine (DNS rebinding) sends requests that no browser takes for another site's.
    """
    host = HOST.fullmatch(request.headers.get("host", ""))
    return host is not None and host[1].strip("[]").rstrip(".").lower() in {name.lower() for name in names}


async def read_body(request: Request, most_bytes: int) -> bytes | None:
    """The body, None as soon as more than `most_bytes` of it have arrived, whatever length it says it has."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            return None
    return bytes(body)


def replay(body: bytes, receive: Receive) -> Receive:
    """What an application receives after its request's body was read: the body, then what comes."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


def log_failure() -> None:
    """Write one line about the exception that is being handled, without its text, which may be a stranger's."""
    error = sys.exc_info()[1]
    if error is not None:
        place = traceback.extract_tb(error.__traceback__)[-1]
        logger.warning("a request failed: %s in %s:%d", type(error).__name__, place.filename, place.lineno or 0)
