"""Requests over HTTP: limits on time and answer, no redirects, no proxies of the environment; several at once, and again."""

import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, responses
from queue import SimpleQueue
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from rlhf_dialog.errors import UserError
from rlhf_dialog.user_code import BackgroundCall, TimeLimit, run_with_timeout

logger = logging.getLogger(__name__)
J = TypeVar("J")
T = TypeVar("T")
MAX_BACKOFF = 30.0  # seconds
CHUNK = 1 << 16  # bytes
AGENT = "rlhf-dialog"
RETRIED = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)  # and every 5xx


class RequestFailed(Exception):
    """Why there is no answer, without words of the server; `again`: whether another request may get one.

    `status` of a refusal, and `body`: what the server sent with it, at most CHUNK bytes. `tried`: how often the server was
    asked, in words.
    """

    tried = "once"

    def __init__(self, why: str, again: bool, body: bytes = b"", status: int | None = None):
        super().__init__(why)
        self.again, self.body, self.status = again, body, status


@dataclass(frozen=True)
class Client:
    """Asks one server, with a new connection for each request.

    seconds: for a request, from the name's resolution to the last byte; size: bytes of an answer
    """

    url: SplitResult
    headers: Mapping[str, str]
    seconds: float
    size: int

    def ask(self, method: str, target: str, body: bytes | None = None) -> bytes:
        """The body of the answer, whose status is 200 to 299; `target` is path and query. Raises RequestFailed."""
        try:
            return run_with_timeout(self.seconds, lambda: self._ask(method, target, body))
        except (TimeLimit, TimeoutError):
            raise RequestFailed(f"gave no complete answer within {self.seconds:g} seconds", True) from None
        except (OSError, HTTPException, UnicodeError) as error:  # UnicodeError: a name that cannot be one
            details = getattr(error, "strerror", None) or "no details"
            raise RequestFailed(f"cannot be reached ({type(error).__name__}: {details})", True) from None

    def _ask(self, method: str, target: str, body: bytes | None) -> bytes:
        deadline = time.monotonic() + self.seconds
        headers = {"User-Agent": AGENT} | {name.title(): value for name, value in self.headers.items()}
        kind: type[HTTPConnection] = HTTPSConnection if self.url.scheme == "https" else HTTPConnection
        port = self.url.port or kind.default_port
        with closing(kind(self.url.hostname or "", port, timeout=self.seconds)) as connection:
            connection.request(method, target, body, {**headers, "Connection": "close"})
            response = connection.getresponse()
            status = response.status
            if not 200 <= status < 300:
                moved = "; redirects are not followed: name the final address" if 300 <= status < 400 else ""
                why = f"answered {status} {responses.get(status, '')}".rstrip() + moved
                raise RequestFailed(why, status >= 500 or status in RETRIED, _beginning(response), status)
            answer = bytearray()
            while chunk := response.read1(CHUNK):
                answer += chunk
                if len(answer) > self.size:
                    raise RequestFailed(f"answered with more than {self.size} bytes", False)
                if time.monotonic() > deadline:
                    raise TimeLimit
            if response.length:
                raise RequestFailed(f"ended its answer {response.length} bytes early", True)
            return bytes(answer)


def _beginning(response: HTTPResponse) -> bytes:
    """The first CHUNK bytes of a refusal; what arrived where it breaks off."""
    try:
        return response.read(CHUNK)
    except (OSError, HTTPException):
        return b""


def ask_again(ask: Callable[[], T], retries: int, backoff_s: float, asked: str) -> T:
    """What `ask` returns, which raises RequestFailed; asked at most `retries` times more where that may help.

    The waiting time before it doubles, up to MAX_BACKOFF. `asked`: who asks whom, for the log.
    """
    pause, attempt = backoff_s, 1
    while True:
        try:
            return ask()
        except RequestFailed as error:
            if attempt > retries or not error.again:
                error.tried = "once" if attempt == 1 else f"{attempt} times"
                raise
            attempt += 1
            logger.info("%s %s; attempt %d follows", asked, error, attempt)
        time.sleep(min(pause, MAX_BACKOFF))
        pause *= 2


def in_threads(jobs: Sequence[J], work: Callable[[J], T], num_workers: int) -> list[T]:
    """The result of each job, in order, `num_workers` at a time.

    The first error is raised at once. Then no further job begins, and neither the caller nor the end of the process waits for
    those that have begun; so it is after Ctrl-C.
    """
    if num_workers == 1:
        return [work(job) for job in jobs]
    waiting = deque(enumerate(jobs))
    done: SimpleQueue[tuple[int, Future[T]]] = SimpleQueue()

    def run() -> None:
        while waiting:
            try:
                number, job = waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            outcome: Future[T] = Future()
            try:
                outcome.set_result(work(job))
            except BaseException as error:  # of any kind: it is raised in the caller
                waiting.clear()
                outcome.set_exception(error)
            done.put((number, outcome))

    for _ in range(min(num_workers, len(jobs))):
        BackgroundCall(run)
    results = {}
    try:
        for _ in jobs:
            number, outcome = done.get()
            results[number] = outcome.result()
    finally:
        waiting.clear()
    return [results[number] for number in range(len(jobs))]


def address_parts(url: Any, place: str) -> SplitResult:
    """The parts of an http or https address. Raises UserError, which does not show the address: it may hold a secret."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and parts.username is None
    except ValueError:
        good = False
    if not good or re.search(r"[\s\x00-\x1f\x7f]", url) or not url.isascii():
        what = "must be an address like http://127.0.0.1:8000/score, http or https, in ASCII, without spaces, user or password"
        raise UserError(f"{place}: {what} (token_env names a variable for a secret)")
    return parts


def authorization(variable: Any, place: str) -> dict[str, str]:
    """The header with the text of an environment variable; none for None.

    Messages show the variable's name only if it looks like one, not like the secret itself.
    """
    if variable is None:
        return {}
    is_name = isinstance(variable, str) and re.fullmatch(r"[A-Z_][A-Z0-9_]{0,60}", variable)
    place = f"{place}: the environment variable {repr(variable) if is_name else 'given'}"
    value = os.environ.get(variable) if isinstance(variable, str) else None
    if not value:
        raise UserError(f"{place} is not set; give the name of one, not the secret")
    if not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", value):
        raise UserError(f"{place} must hold one line of ASCII text")
    return {"Authorization": f"Bearer {value}"}
