"""One request over HTTP: limits on its time and on its answer, no redirects, no proxies of the environment."""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection, responses
from urllib.parse import SplitResult

from rlhf_dialog.user_code import TimeLimit, run_with_timeout

CHUNK = 1 << 16  # bytes
AGENT = "rlhf-dialog"
RETRIED = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)  # and every 5xx


class RequestFailed(Exception):
    """Why there is no answer, without words of the server; `again`: whether another request may get one."""

    def __init__(self, why: str, again: bool):
        super().__init__(why)
        self.again = again


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
                raise RequestFailed(why, status >= 500 or status in RETRIED)
            answer = b""
            while chunk := response.read1(CHUNK):
                answer += chunk
                if len(answer) > self.size:
                    raise RequestFailed(f"answered with more than {self.size} bytes", False)
                if time.monotonic() > deadline:
                    raise TimeLimit
            if response.length:
                raise RequestFailed(f"ended its answer {response.length} bytes early", True)
            return answer
