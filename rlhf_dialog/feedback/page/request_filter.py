"""Between the network and the page: who sends a request, how large it may be, what a browser may load."""

import asyncio
import hmac
import json
import logging
import re
import secrets
import sys
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from rlhf_dialog.feedback.page.rates import MINUTE, Bucket
from rlhf_dialog.feedback.store.settings import PageKeys

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)
THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
HOST = re.compile(r"([\w.-]+|\[[0-9a-f:.]+\])(:\d+)?", re.IGNORECASE | re.ASCII)
# The paths of Gradio that the page uses. The other ones (uploads, files, a proxy, profiles, an API for programs) are closed.
OPEN_PATHS = re.compile(
    r"/(|config|login|logout|theme\.css|robots\.txt|favicon\.ico|manifest\.json|(assets|static|svelte)/[^\\\0]*"
    r"|gradio_api/(queue/(join|data)|heartbeat/\w+|reset|cancel|startup-events|login_check|app_id|user|theme\.css))/?"
)
# The paths that the form for the password needs. `config` tells strangers only that there is a password.
BEFORE_LOGIN = re.compile(r"/(|config|login|theme\.css|favicon\.ico|(assets|static|svelte)/.*|gradio_api/theme\.css)/?")
SAME_SITE = re.compile(rb";\s*SameSite=\w+", re.IGNORECASE)
# A browser loads nothing from elsewhere, whatever a bot or a person writes. Gradio's page contains inline scripts.
CONTENT_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-src 'none'; frame-ancestors 'none'"
)
ROOTS = (b"x-forwarded-host", b"x-gradio-server")  # from which Gradio would make the address of the page
FAILURES = Bucket(20, MINUTE)  # lines of the log
HEADERS = {
    b"content-security-policy": CONTENT_POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
}
SESSION = re.compile(r"\w{1,64}", re.ASCII)  # the name of a page (a browser's tab), as browsers make them up
FIELDS = ("fn_index", "session_hash", "data", "trigger_id", "event_data", "event_id")
YEAR = 365 * 24 * 3600
ID = re.compile(r"[0-9a-f]{32}")
Headers = list[tuple[bytes, bytes]]


class SignedCookie:
    """A cookie with a random id, which scripts cannot read and other sites cannot send."""

    def __init__(self, name: str, secret: str):
        self.name, self._secret = name, secret

    def sign(self, person: str) -> str:
        """The cookie's value for an id."""
        signature = hmac.digest(self._secret.encode(), f"{self.name} {person}".encode(), "sha256").hex()[:32]
        return f"{person}.{signature}"

    def read(self, cookies: Mapping[str, str]) -> str | None:
        """The id in the cookies of a request, None when there is none of ours."""
        value = cookies.get(self.name, "")
        person = value[:32]
        is_ours = ID.fullmatch(person) and hmac.compare_digest(
            value.encode("utf-8", "replace"), self.sign(person).encode()
        )
        return person if is_ours else None

    def headers(self, person: str, is_secure: bool) -> Headers:
        """The header that gives an id to a browser."""
        secure = "; Secure" if is_secure else ""
        value = f"{self.name}={self.sign(person)}; Path=/; Max-Age={YEAR}; HttpOnly; SameSite=Strict{secure}"
        return [(b"set-cookie", value.encode())]


def read_cookies(scope: MutableMapping[str, Any]) -> dict[str, str]:
    """The cookies of a request."""
    pairs = (
        pair.partition("=")
        for name, value in scope["headers"]
        if name == b"cookie"
        for pair in value.decode("latin-1").split(";")
    )
    return {key.strip(): content.strip() for key, _, content in pairs if key.strip()}


class RequestRefused(Exception):
    """Why a request is not answered: a status and a reason."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


def read_event(body: bytes) -> dict[str, Any]:
    """An event with the fields that the page uses. Raises RequestRefused for a body that is none.

    The values of its parts are texts and numbers: Gradio would take an object for a file.
    """
    try:
        sent = json.loads(body)
        event = {name: sent[name] for name in FIELDS if name in sent}
        json.dumps(event, ensure_ascii=False, allow_nan=False).encode()  # half characters cannot be stored
        is_valid = isinstance(sent, dict) and all(isinstance(x, str | int | None) for x in event.get("data", []))
        is_valid &= all(
            SESSION.fullmatch(event[name]) is not None for name in ("session_hash", "event_id") if name in event
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise RequestRefused(422, "this is not an event of this page; load it again")
    return event


def log_failure() -> None:
    """Write one line about the exception that is being handled, without its text, which may be a stranger's; a few a minute."""
    error = sys.exc_info()[1]
    if error is not None and FAILURES.wait() == 0:
        FAILURES.take()
        place = traceback.extract_tb(error.__traceback__)[-1]
        logger.warning("a request failed: %s in %s:%d", type(error).__name__, place.filename, place.lineno or 0)


class RequestFilter:
    """ASGI middleware around the page of the bot with this id (32 hexadecimal digits).

    It answers only to the names `hosts` (None: to any), because a site that lets its own name lead to this machine must not read
    the page. It refuses what other sites send, paths that the page does not use, bodies above the limit, while they arrive, and
    bodies that are no events. It gives each browser a random id, signed with `secret`, and lets no one read the stream of another
    person's page (a browser's tab): that is the first person who sends an event from it. `is_logged_in` tells by the cookies who
    may see more than the form for the password, which Gradio checks. `inputs`: the functions of the page (`fn_index`), and how
    many values each takes; without it, any event passes.
    """

    MOST_PAGES = 100_000

    def __init__(
        self,
        app: App,
        bot: str,
        limits: PageKeys,
        hosts: Collection[str] | None = THIS_MACHINE,
        is_logged_in: Callable[[Mapping[str, str]], bool] = lambda cookies: True,
        *,
        secret: str,
        inputs: Mapping[int, int] | None = None,
    ):
        self._app, self._limits, self._is_logged_in, self._inputs = app, limits, is_logged_in, inputs
        self._hosts = None if hosts is None else {name.lower() for name in hosts}
        self.cookie = SignedCookie(f"rlhf_dialog_{bot[:8]}", secret)
        self._owners: OrderedDict[str, str] = OrderedDict()  # of the pages

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        has_begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._filter(scope, receive, send_and_note)
        except RequestRefused as refusal:
            await _refuse(send, refusal)
        except asyncio.CancelledError:  # the server ends while a page is open
            return
        except Exception:  # of any kind: Gradio reads what strangers write
            log_failure()
            if not has_begun:
                await _refuse(send, RequestRefused(500, "this request cannot be answered"))

    async def _filter(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get("x-forwarded-proto", "").startswith("https"):
            scope = {**scope, "scheme": "https"}
        self._check(scope, headers)
        scope = {**scope, "headers": [pair for pair in scope["headers"] if pair[0] not in ROOTS]}
        body, new_cookies = b"", Headers()
        if scope["method"] == "POST":
            received = await self._read_body(receive)
            if received is None:
                return  # the sender has gone
            body = received
        if scope["method"] == "POST" and scope["path"].startswith("/gradio_api/"):
            scope, body, new_cookies = self._check_event(scope, body)
        else:
            person, path = self.cookie.read(read_cookies(scope)), scope["path"].rstrip("/")
            pages = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("session_hash", [])
            for page in (*pages, *([path.rpartition("/")[2]] if "/heartbeat/" in path else [])):
                self._check_owner(page, person)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                of_gradio = [
                    (name, SAME_SITE.sub(b"; SameSite=Lax", value) if name.lower() == b"set-cookie" else value)
                    for name, value in message.get("headers", [])
                    if name.lower() not in HEADERS
                ]
                message = {**message, "headers": [*of_gradio, *HEADERS.items(), *new_cookies]}
            await send(message)

        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, receive_body, send_with_headers)

    def _check(self, scope: Message, headers: Mapping[str, str]) -> None:
        """Raises RequestRefused by host, path, origin and login."""
        host, path = HOST.fullmatch(headers.get("host", "")), scope["path"]
        if self._hosts is not None and (not host or host[1].strip("[]").rstrip(".").lower() not in self._hosts):
            names = ", ".join(sorted(self._hosts))
            raise RequestRefused(
                403, f"this page answers to the names {names} alone; start it with --allow_host NAME to add another one"
            )
        if not OPEN_PATHS.fullmatch(path):
            raise RequestRefused(404, "this page does not have that")
        is_link = scope["method"] == "GET" and path == "/"  # to this page
        of_other_site = headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not is_link
        origin = headers.get("origin")
        if of_other_site or (
            origin is not None and (origin.lower().partition("://")[2] or "null") != headers.get("host", "").lower()
        ):
            raise RequestRefused(403, "another site sent this request; open the page itself")
        if not BEFORE_LOGIN.fullmatch(path) and not self._is_logged_in(read_cookies(scope)):
            raise RequestRefused(401, "log in first")

    async def _read_body(self, receive: Receive) -> bytes | None:
        """A body as it arrives; None where the sender goes. Raises RequestRefused as soon as it is longer than the limit."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._limits.page_request_bytes:
                raise RequestRefused(413, "the request is too large")
            if not message.get("more_body", False):
                return bytes(body)

    def _check_event(self, scope: Message, body: bytes) -> tuple[Message, bytes, Headers]:
        """The request with the id of its sender and the checked body, and the headers that give a new id to the browser.

        Only the page's own events get an id: a browser sends a strict cookie with them, but not with the first request after a
        link elsewhere was followed. Raises RequestRefused for a body that is no event, for an event of a function that the page
        does not have, or with other values than it takes, and for the page of another person.
        """
        event, new_cookies = read_event(body), Headers()
        is_call = scope["path"].rstrip("/") == "/gradio_api/queue/join"
        if self._inputs is not None and (is_call or "fn_index" in event):
            index, data = event.get("fn_index"), event.get("data", [])
            count = self._inputs.get(index) if type(index) is int else None
            if count is None or (is_call and (not isinstance(data, list) or len(data) != count)):
                raise RequestRefused(422, "the page has no such event; load it again")
        page, cookies = event.get("session_hash", ""), read_cookies(scope)
        person = self.cookie.read(cookies)
        self._check_owner(page, person)
        if is_call and page:
            if person is None:
                person = secrets.token_hex(16)
                pairs = cookies | {self.cookie.name: self.cookie.sign(person)}
                header = "; ".join(f"{name}={value}" for name, value in pairs.items()).encode("latin-1")
                others = [pair for pair in scope["headers"] if pair[0] != b"cookie"]
                new_cookies = self.cookie.headers(person, scope.get("scheme") == "https")
                scope = {**scope, "headers": [*others, (b"cookie", header)]}
            self._owners[page] = person
            self._owners.move_to_end(page)
            if len(self._owners) > self.MOST_PAGES:
                self._owners.popitem(last=False)
        return scope, json.dumps(event).encode(), new_cookies

    def _check_owner(self, page: str, person: str | None) -> None:
        if self._owners.get(page) not in (None, person):
            raise RequestRefused(403, "this page belongs to somebody else; load it again")


async def _refuse(send: Send, refusal: RequestRefused) -> None:
    body = json.dumps({"detail": refusal.reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *HEADERS.items()]
    headers += [(b"connection", b"close")] if refusal.status == 413 else []  # nothing more of it is read
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
