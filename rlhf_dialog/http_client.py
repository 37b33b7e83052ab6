"""One request over HTTP: limits on its time and on its answer, no redirects, no proxies of the environment."""

import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import SplitResult

from rlhf_dialog.user_code import TimeLimit, run_with_timeout

CHUNK = 1 << 16  # bytes
AGENT = "rlhf-dialog"


class Unreachable(Exception):
    """There is no connection, or a broken one; `reason` is what the system or http.client raised."""

    def __init__(self, reason: Exception):
        super().__init__(str(reason))
        self.reason = reason


class Refused(Exception):
    """The status of the answer is not one of success."""

    def __init__(self, status: int):
        super().__init__(status)
        self.status = status


class TooLong(Exception):
    """The answer has more bytes than are read."""


class EndedEarly(Exception):
    """The answer lacks its last bytes."""

    def __init__(self, missing: int):
        super().__init__(missing)
        self.missing = missing


@dataclass(frozen=True)
class RequestLimits:
    """seconds: from the name's resolution to the last byte; size: bytes of an answer"""

    seconds: float
    size: int


@dataclass(frozen=True)
class Client:
    """Asks one server, with a new connection for each request.

    check_address: called with the address that the server's name has, before the connection, which goes to this very address: no
    second resolution can lead elsewhere; what it raises reaches the caller. Without it every address of the name is tried
    """

    url: SplitResult
    headers: Mapping[str, str]
    check_address: Callable[[str], None] | None = None

    def ask(self, method: str, target: str, limits: RequestLimits, body: bytes | None = None) -> bytes:
        """The body of the answer, whose status is 200 to 299; `target` is path and query.

        Raises TimeLimit, Unreachable, Refused, TooLong and EndedEarly.
        """
        try:
            return run_with_timeout(limits.seconds, lambda: self._ask(method, target, limits, body))
        except TimeoutError:
            raise TimeLimit from None
        except (OSError, HTTPException, UnicodeError) as error:  # UnicodeError: a name that cannot be one
            raise Unreachable(error) from None

    def _ask(self, method: str, target: str, limits: RequestLimits, body: bytes | None) -> bytes:
        deadline = time.monotonic() + limits.seconds
        headers = {"User-Agent": AGENT} | {name.title(): value for name, value in self.headers.items()}
        with closing(self._connection(limits.seconds)) as connection:
            connection.request(method, target, body, {**headers, "Connection": "close"})
            response = connection.getresponse()
            if not 200 <= response.status < 300:
                raise Refused(response.status)
            return _whole(response, limits.size, deadline)

    def _connection(self, seconds: float) -> HTTPConnection:
        """A connection that is opened by its first request, or to the address that was checked."""
        kind: type[HTTPConnection] = HTTPSConnection if self.url.scheme == "https" else HTTPConnection
        connection = kind(self.url.hostname or "", self.url.port or kind.default_port, timeout=seconds)
        if self.check_address is not None:
            connection.sock = self._checked_socket(connection)
        return connection

    def _checked_socket(self, connection: HTTPConnection) -> socket.socket:
        """A connection to the first address that answers; each was checked."""
        plain = self._first_that_answers(connection)
        if self.url.scheme == "http":
            return plain
        return ssl.create_default_context().wrap_socket(plain, server_hostname=connection.host)

    def _first_that_answers(self, connection: HTTPConnection) -> socket.socket:
        assert self.check_address is not None
        host, port = connection.host, connection.port
        *others, last = dict.fromkeys(str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        for address in others:
            self.check_address(address)
            with suppress(OSError):
                return socket.create_connection((address, port), connection.timeout)
        self.check_address(last)
        return socket.create_connection((last, port), connection.timeout)


def _whole(response: HTTPResponse, size: int, deadline: float) -> bytes:
    """The body of an answer."""
    body = b""
    while chunk := response.read1(CHUNK):
        body += chunk
        if len(body) > size:
            raise TooLong
        if time.monotonic() > deadline:
            raise TimeLimit
    if response.length:
        raise EndedEarly(response.length)
    return body
