"""Between the network and the page: who somebody is, how large a request may be, what a browser may load."""

import asyncio
import json
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.page.cookies import Headers, People, Sessions, SignedCookie, cookies_of
from rlhf_dialog.feedback.page.events import read_json
from rlhf_dialog.feedback.page.logins import Logins, address_of
from rlhf_dialog.feedback.page.tally import Tally
from rlhf_dialog.feedback.store.limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
LAX = re.compile(rb";\s*SameSite=\w+", re.IGNORECASE)
HOST = re.compile(r"([\w.-]+|\[[0-9a-f:.]+\])(:\d+)?", re.IGNORECASE | re.ASCII)
# What a proxy or a tunnel says of itself, as Gradio can read it. `x-gradio-server` is for programs.
PASSED = {
    b"x-forwarded-host": re.compile(rb"[\w.-]+(:\d{1,4})?(, *[\w.-]+(:\d{1,4})?)*"),
    b"x-forwarded-proto": re.compile(rb"https?(, *https?)*"),
    b"x-gradio-server": re.compile(rb"(?!)"),
}
# What the page needs of Gradio. The rest (uploads, files, a proxy, profiles, an API for programs) is closed.
OPEN = re.compile(
    r"/(|config|login|logout|theme\.css|robots\.txt|favicon\.ico|manifest\.json|(assets|static|svelte)/[^\\]*"
    r"|gradio_api/(queue/(join|data)|heartbeat/\w+|reset|cancel|startup-events|login_check|app_id|user|theme\.css))/?"
)
# What the page that asks for a password needs. `config` says to others only that there is a password.
BEFORE_LOGIN = re.compile(r"/(|config|login|theme\.css|favicon\.ico|(assets|static|svelte)/.*|gradio_api/theme\.css)/?")
# A browser loads nothing from elsewhere, for all that a bot or a person writes. Gradio's page has scripts in itself.
CONTENT_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-src 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]


class Refused(Exception):
    """Why a request is not answered: a status, a reason, and how many seconds to wait."""

    def __init__(self, status: int, reason: str, wait: float = 0.0):
        super().__init__(reason)
        self.status, self.reason, self.wait = status, reason, wait


class RequestFilter:
    """ASGI middleware around the page of the bot with this id (32 hexadecimal digits).

    It answers to the names `hosts` alone (None: to any): a site that lets its own name lead to this machine must not read the
    page. It refuses what other sites send, paths that the page does not need, all but the form for the password to who is not
    `known` by the cookies, requests that are too large, while they arrive, and events that `events` does not know. It gives each
    browser a random id, signed with `secret`, lets nobody read the stream of another person's page, slows down who guesses
    passwords, by the address that `proxies` add, and says to the browser that nothing may be loaded from elsewhere. It writes
    nothing down, addresses least of all.
    """

    def __init__(
        self,
        app: App,
        bot: str,
        limits: Limits,
        hosts: Collection[str] | None = THIS_MACHINE,
        known: Callable[[Mapping[str, str]], bool] = lambda cookies: True,
        clock: Callable[[], float] = time.monotonic,
        *,
        secret: str,
        events: Any,
        was_issued: Callable[[str], bool] = lambda person: False,
        proxies: Collection[str] = (),
    ):
        self._app, self._limits, self._known, self._events, self._proxies = app, limits, known, events, proxies
        self._hosts = None if hosts is None else {name.lower() for name in hosts}
        self.links: set[str] = set()  # where a tunnel shows the page, as a browser names it: host, or host:port
        name = f"rlhf_dialog_{bot[:8]}"
        self.people = People(SignedCookie(name, secret, was_issued))
        self._sessions = Sessions()
        self._logins = Logins(limits, SignedCookie(f"{name}_browser", secret), clock)
        self._ending = asyncio.Event()
        self._tally = Tally()

    def end(self) -> None:
        """Say to the open pages that the server ends; call it in the thread of the event loop."""
        self._ending.set()

    def person(self, cookies: Mapping[str, str]) -> str | None:
        """The random id in the cookies of a request, None when there is none of ours."""
        return self.people.cookie.read(cookies)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        has_begun = False

        async def sent(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._filtered(_cleaned(scope), receive, sent)
        except Refused as refusal:
            await _refuse(sent, refusal)
        except Exception as error:  # of any kind: Gradio reads what strangers write
            # A page of before a restart asks for its events, and Gradio refuses after it began to answer.
            if getattr(error.__cause__, "status_code", None) != 404:
                self._tally.add(f"a request was not answered: {_place(error)}")
            if not has_begun:
                await _refuse(sent, Refused(500, "this request cannot be answered"))

    async def _filtered(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        cookies, path = cookies_of(scope), scope["path"].rstrip("/")
        self._check(scope, headers, cookies)
        body = await self._body(receive) if scope["method"] == "POST" else b""
        if body is None:
            return  # the sender has gone
        tries = None
        if path == "/login" and scope["method"] == "POST":
            tries = self._logins.tries(address_of(scope, headers, self._proxies), cookies)
            if wait := tries.wait():
                raise Refused(429, "too many wrong passwords; try again later", wait)
            tries.take()  # before the answer is known: those at once are counted too
        scope, body, new = self._of_person(scope, cookies, body)

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = new
                if tries is not None and message["status"] == 200:
                    tries.give_back()
                    others = self._logins.remembered(scope, cookies)
                message = {**message, "headers": [*_own_headers(message), *HEADERS, *others]}
            await send(message)

        await self._app(scope, self._received(receive, body), answered)

    def _check(self, scope: Message, headers: Mapping[str, str], cookies: Mapping[str, str]) -> None:
        """Raises Refused where a request is refused for what it is."""
        name = _name(headers.get("host", ""))
        if self._hosts is not None and name not in self._hosts:
            names = ", ".join(sorted(self._hosts))
            raise Refused(
                403, f"this page answers to the names {names} alone; start it with --allow_host NAME to add another one"
            )
        if not name:
            raise Refused(400, "the request does not say to which name it is sent")
        if not OPEN.fullmatch(scope["path"]) or "\0" in scope["path"]:
            raise Refused(404, "this page does not have that")
        if _is_from_elsewhere(scope, headers, self.links):
            raise Refused(403, "another site sent this request; open the page itself")
        if not BEFORE_LOGIN.fullmatch(scope["path"]) and not self._known(cookies):
            raise Refused(401, "log in first")
        if int(headers.get("content-length", "0")) > self._limits.body_bytes:
            raise Refused(413, "the request is too large")

    async def _body(self, receive: Receive) -> bytes | None:
        """A body as it arrives; None where the sender goes. Raises Refused as soon as it is longer than the limit."""
        body = bytearray()
        while True:
            message = await self._until_the_end(receive)
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._limits.body_bytes:
                raise Refused(413, "the request is too large")
            if not message.get("more_body", False):
                return bytes(body)

    def _of_person(self, scope: Message, cookies: dict[str, str], body: bytes) -> tuple[Message, bytes, Headers]:
        """The request with who sends it and its checked body, and the headers that give a new id to the browser.

        Only the page's own events get one. A browser sends a strict cookie with them, but not with the first request after
        a link elsewhere was followed. Raises Refused for an event that is none, and for the page of another person.
        """
        path, before, new = scope["path"].rstrip("/"), self.person(cookies), Headers()
        if scope["method"] == "POST" and path.startswith("/gradio_api/"):
            event = self._event(path, body)
            self._check_page(event["session_hash"], before)
            if path == "/gradio_api/queue/join":
                scope, new = self.people.with_id(scope, cookies)
                self._sessions.take(event["session_hash"], str(self.person(cookies_of(scope))))
            return scope, json.dumps(event).encode(), new
        pages = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("session_hash", [])
        for page in (*pages, *([path.rpartition("/")[2]] if "/heartbeat/" in path else [])):
            self._check_page(page, before)
        return scope, body, new

    def _event(self, path: str, body: bytes) -> dict[str, Any]:
        checked = self._events.joined if path == "/gradio_api/queue/join" else self._events.ended
        try:
            event: dict[str, Any] = checked(read_json(body))
        except UserError as error:
            raise Refused(422, str(error)) from error
        return event

    def _check_page(self, session: str, person: str | None) -> None:
        if not self._sessions.belongs(session, person):
            raise Refused(403, "this page belongs to somebody else; load it again")

    async def _until_the_end(self, receive: Receive) -> Message:
        """What is received next, as if the sender had gone when the server ends."""
        receiving, ending = asyncio.ensure_future(receive()), asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait((receiving, ending), return_when=asyncio.FIRST_COMPLETED)
            return receiving.result() if receiving.done() else {"type": "http.disconnect"}
        finally:
            receiving.cancel()
            ending.cancel()

    def _received(self, receive: Receive, body: bytes) -> Receive:
        """What the application receives: the body, then that the sender has gone."""
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def received() -> Message:
            return messages.pop() if messages else await self._until_the_end(receive)

        return received


def _name(host: str) -> str:
    """The name in a header Host, without the port, the brackets of IPv6 and a dot at its end; "" where it is none."""
    try:
        parts = urlsplit(f"//{host}")
        return (parts.hostname or "").rstrip(".") if HOST.fullmatch(host) and parts.port != -1 else ""
    except ValueError:
        return ""


def _is_from_elsewhere(scope: Message, headers: Mapping[str, str], links: Collection[str]) -> bool:
    """Whether a page of another site sent the request, other than by a link to this page."""
    site = headers.get("sec-fetch-site", "none")
    if site not in ("same-origin", "none") and not (scope["method"] == "GET" and scope["path"] == "/"):
        return True
    origin = headers.get("origin")
    here = {headers.get("host", "").lower(), headers.get("x-forwarded-host", "").lower(), *links}
    return origin is not None and origin.lower().partition("://")[2] not in here - {""}


def _cleaned(scope: Message) -> Message:
    """A request without what Gradio believes of a proxy, where it cannot be; its path is text."""
    headers = [(name, value) for name, value in scope["headers"] if name not in PASSED or PASSED[name].fullmatch(value)]
    if any(name == b"x-forwarded-proto" and value.startswith(b"https") for name, value in headers):
        scope = {**scope, "scheme": "https"}
    return {**scope, "headers": headers}


def _own_headers(message: Message) -> Headers:
    """The headers of an answer of Gradio's that stay."""
    names = {name for name, _ in HEADERS}
    return [
        (name, LAX.sub(b"; SameSite=Lax", value) if name.lower() == b"set-cookie" else value)
        for name, value in message.get("headers", [])
        if name.lower() not in names and not name.lower().startswith(b"access-control-")
    ]


def _place(error: Exception) -> str:
    """The kind of an error, and where it was raised; not its text, which strangers may have written."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {frame.filename.rpartition('/')[2]}:{frame.lineno}"


async def _refuse(send: Send, refusal: Refused) -> None:
    body = json.dumps({"detail": refusal.reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *HEADERS]
    headers += [(b"retry-after", str(int(refusal.wait) + 1).encode())] if refusal.wait else []
    headers += [(b"connection", b"close")] if refusal.status == 413 else []  # nothing more of it is read
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
