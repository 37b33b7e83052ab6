"""Between the network and the API: who sends a request, how large it may be, and how much one caller may ask."""

import asyncio
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.door.callers import Caller
from rlhf_dialog.feedback.door.requests import ApiError
from rlhf_dialog.feedback.sessions.http_requests import THIS_MACHINE, is_sent_to, log_failure, read_body, replay
from rlhf_dialog.feedback.sessions.rates import RateExceeded, Rates
from rlhf_dialog.feedback.store.settings import ApiKeys

PATHS = "/v1/"  # how those of the API begin
ORIGIN = re.compile(r"https?://([\w.-]+|\[[0-9a-f:.]+\])(:\d+)?", re.ASCII)
JSON_TYPE = re.compile(r"application/json\s*(;\s*charset\s*=\s*\"?utf-8\"?\s*)?", re.IGNORECASE)
HEADER_NAMES = re.compile(r"[\w-]+(\s*,\s*[\w-]+)*", re.ASCII)
HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}
RETRY_SECONDS = 2.0  # after which an answer may have ended


def check_origin(origin: str) -> str:
    """A web site as browsers name it: `https://chat.example.org`. Raises UserError."""
    named = origin.strip().rstrip("/").lower()
    if not ORIGIN.fullmatch(named):
        raise UserError(
            f"--allow_origin {origin}: give one site with its protocol, and its port if it has one: https://chat.example.org, "
            "for example"
        )
    return named.removesuffix(":443" if named.startswith("https:") else ":80")


class Guard:
    """ASGI middleware around the API.

    It answers only to the names `hosts`: while no key exists, whoever reaches the API may use it, and a site that lets its own
    name lead to this machine must not. Browsers say which site sends a request; those of other sites than `origins`
    (`check_origin`) are refused, of this host's own pages too. Bodies are JSON, and cut at the limit as they arrive.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ApiKeys,
        hosts: Collection[str] = THIS_MACHINE,
        origins: Collection[str] = (),
    ):
        self._app, self._limits, self._hosts, self._origins = app, limits, hosts, frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        request, has_begun = Request(scope, receive), False
        headers = {**HEADERS, **self._cors_headers(request)}

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if message["type"] == "http.response.start":
                new_headers = MutableHeaders(raw=list(message.get("headers", [])))
                new_headers.update(headers)
                message = {**message, "headers": new_headers.raw}
            await send(message)

        try:
            try:
                await self._pass(request, send_with_headers)
            except ApiError as refusal:
                if refusal.status == 413:
                    headers["connection"] = "close"  # nothing more of it is read
                await as_response(refusal)(scope, receive, send_with_headers)
        except (asyncio.CancelledError, ClientDisconnect):
            return  # the server ends, or the sender has gone
        except Exception:  # of any kind; its text may be a stranger's, or hold a key
            log_failure()
            if has_begun:
                raise
            failure = ApiError(500, "the server could not answer this; its log says where", "server_error")
            await as_response(failure)(scope, receive, send_with_headers)

    async def _pass(self, request: Request, send: Send) -> None:
        """Raises ApiError for a request that the application must not see."""
        if not is_sent_to(request, self._hosts):
            names = ", ".join(sorted(self._hosts))
            raise ApiError(
                403, f"this API answers to the names {names} alone; start it with --allow_host NAME to add another one"
            )
        if not self._is_allowed_site(request):
            raise ApiError(
                403,
                "a web page of another site sent this request; start the API with --allow_origin to allow that site",
            )
        if not request.scope["path"].startswith(PATHS):
            raise ApiError(404, f"this API has no such address; its addresses begin with {PATHS}", code="not_found")
        if request.method == "OPTIONS" and "access-control-request-method" in request.headers:
            await self._preflight(request)(request.scope, request.receive, send)
            return
        has_type = JSON_TYPE.fullmatch(request.headers.get("content-type", "").strip())
        body = b"" if request.method in ("GET", "HEAD") else await read_body(request, self._limits.api_request_bytes)
        if body is None:
            raise ApiError(
                413,
                f"the request has more than {self._limits.api_request_bytes:,} bytes (api_request_bytes); shorten it",
            )
        if body and not has_type:
            raise ApiError(415, "the body is read as JSON alone; send it with Content-Type: application/json")
        await self._app(request.scope, replay(body, request.receive), send)

    def _is_allowed_site(self, request: Request) -> bool:
        """Whether no web page sent a request, or one of `origins`."""
        sent, site = request.headers.getlist("origin"), request.headers.get("sec-fetch-site", "none")
        if sent:
            return all(origin.lower() in self._origins for origin in sent)
        own = request.headers.get("host", "").lower()  # browsers name no origin when they read from a page's own one
        is_own = site == "same-origin" and own in {origin.partition("://")[2] for origin in self._origins}
        return site == "none" or is_own

    def _cors_headers(self, request: Request) -> dict[str, str]:
        """What lets the scripts of an allowed site read the answer."""
        origin = request.headers.get("origin", "")
        if origin.lower() not in self._origins:
            return {}
        return {"access-control-allow-origin": origin, "access-control-expose-headers": "*", "vary": "Origin"}

    def _preflight(self, request: Request) -> Response:
        """The answer to a browser that asks whether an allowed site may send a request."""
        names = request.headers.get("access-control-request-headers", "").strip()
        headers = {"access-control-allow-methods": "GET, POST, DELETE", "access-control-max-age": "600"}
        if HEADER_NAMES.fullmatch(names):
            headers["access-control-allow-headers"] = names
        return Response(status_code=204, headers=headers)


def as_response(error: ApiError) -> Response:
    """A refusal as clients of OpenAI read it."""
    return JSONResponse(error.body, error.status, error.headers)


def _too_many(message: str, seconds: float) -> ApiError:
    headers = {"retry-after": str(math.ceil(seconds))}
    return ApiError(429, message, "rate_limit_error", "rate_limit_exceeded", headers=headers)


class CallerLimits:
    """How much callers may ask: rates by kind (messages, ratings, looks), and answers at the same time. Threads may share it.

    A caller is a person, or a user of a gateway. Of visitors, who are one person, each address is a caller of its own.
    """

    def __init__(self, limits: ApiKeys, clock: Callable[[], float] = time.monotonic):
        self._limits, self._rates = limits, Rates(limits, clock, "api")
        self._answers: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, kind: str, caller: Caller, address: str = "") -> None:
        """Count a request. Raises ApiError, 429, and counts nothing, when it is one too many."""
        try:
            self._rates.count(kind, _name(caller, address))
        except RateExceeded as error:
            raise _too_many(str(error), error.seconds) from None

    @contextmanager
    def answering(self, caller: Caller, address: str = "") -> Iterator[None]:
        """Held while an answer is generated, streamed and stored. Raises ApiError, 429 when there are too many."""
        name = _name(caller, address)
        with self._lock:
            if self._answers[name] >= self._limits.api_streams:
                raise _too_many(
                    f"you wait for {self._answers[name]} answers already (api_streams); ask again when one has ended",
                    RETRY_SECONDS,
                )
            if self._answers.total() >= self._limits.api_streams_in_all:
                raise _too_many("too many people wait for answers at the moment (api_streams_in_all)", RETRY_SECONDS)
            self._answers[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._answers[name] -= 1
                self._answers = +self._answers


def _name(caller: Caller, address: str) -> str:
    return f"{caller.person} {caller.user or (address if caller.role == 'visitor' else '')}"
