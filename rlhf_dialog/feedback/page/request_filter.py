"""Between the network and the page: who somebody is, how large a request may be, what a browser may load."""

import asyncio
import json
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from rlhf_dialog.feedback.store.limits import Bucket, Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
YEAR = 365 * 24 * 3600
LAX = re.compile(rb";\s*SameSite=\w+", re.IGNORECASE)
PERSON = re.compile(r"[0-9a-f]{32}")
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


class RequestFilter:
    """ASGI middleware around the page of the bot with this id (32 hexadecimal digits).

    It answers to the names `hosts` alone (None: to any): a site that lets its own name lead to this machine must not read the
    page. It refuses what other sites send, paths that the page does not need, all but the form for the password to who is not
    `known` by the cookies, and requests that are too large. It gives each browser a random id in a cookie that scripts cannot
    read and other sites cannot send, slows down who guesses passwords, and says to the browser that nothing may be loaded from
    elsewhere. It writes nothing down, addresses least of all.
    """

    MAX_RENEWED = 10_000

    def __init__(
        self,
        app: App,
        bot: str,
        limits: Limits,
        hosts: Collection[str] | None = THIS_MACHINE,
        known: Callable[[Mapping[str, str]], bool] = lambda cookies: True,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._app, self._limits, self._known = app, limits, known
        self._hosts = None if hosts is None else {name.lower() for name in hosts}
        self.links: set[str] = set()  # where a tunnel shows the page, as a browser names it: host, or host:port
        self.cookie = f"rlhf_dialog_{bot[:8]}"
        self._renewed: OrderedDict[str, None] = OrderedDict()
        self._ending = asyncio.Event()
        self._logins = Bucket(limits.logins, limits.logins * limits.login_seconds, clock)

    def end(self) -> None:
        """Say to the open pages that the server ends; call it in the thread of the event loop."""
        self._ending.set()

    def renew(self, person: str) -> None:
        """The next request with this person's id gets another one."""
        self._renewed[person] = None
        if len(self._renewed) > self.MAX_RENEWED:
            self._renewed.popitem(last=False)

    def person(self, cookies: Mapping[str, str]) -> str | None:
        """The random id in the cookies of a request, None when there is none of ours."""
        found = cookies.get(self.cookie, "")
        return found if PERSON.fullmatch(found) else None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if refusal := self._refusal(scope, headers):
            return await _refuse(send, *refusal)
        is_login = scope["path"].rstrip("/") == "/login" and scope["method"] == "POST"
        if is_login:
            if wait := self._logins.wait():
                return await _refuse(send, 429, "too many wrong passwords; try again later", wait)
            self._logins.take()  # before the answer is known: those at once are counted too
        scope, new = self._with_person(scope)
        try:
            await self._app(scope, self._measured(receive), self._answered(send, is_login, new))
        except RuntimeError as error:
            # A page of before a restart asks for its events, and Gradio refuses after it began to answer.
            if getattr(error.__cause__, "status_code", None) != 404:
                raise

    def _refusal(self, scope: Message, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """The status and the reason, where a request is refused for what it is."""
        if self._hosts is not None and _name(headers.get("host", "")) not in self._hosts:
            names = ", ".join(sorted(self._hosts))
            return (
                403,
                f"this page answers to the names {names} alone; start it with --allow_host NAME to add another one",
            )
        if not OPEN.fullmatch(scope["path"]):
            return 404, "this page does not have that"
        if _is_from_elsewhere(scope, headers, self.links):
            return 403, "another site sent this request; open the page itself"
        if not BEFORE_LOGIN.fullmatch(scope["path"]) and not self._known(_cookies(scope)):
            return 401, "log in first"
        if int(headers.get("content-length", "0")) > self._limits.body_bytes:
            return 413, "the request is too large"
        return None

    def _with_person(self, scope: Message) -> tuple[Message, list[tuple[bytes, bytes]]]:
        """The request with a person's id, and the headers that give it to the browser where it is new.

        Only the page's own requests get one. A browser sends a strict cookie with them, but not with the first request after
        a link elsewhere was followed.
        """
        if scope["path"].rstrip("/") != "/gradio_api/queue/join":
            return scope, []
        person = self.person(_cookies(scope))
        if person is not None and person not in self._renewed:
            return scope, []
        own = f"{self.cookie}={secrets.token_hex(16)}"
        others = [f"{name}={value}" for name, value in _cookies(scope).items() if name != self.cookie]
        headers = [one for one in scope["headers"] if one[0] != b"cookie"]
        headers.append((b"cookie", "; ".join([*others, own]).encode("latin-1")))
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        cookie = f"{own}; Path=/; Max-Age={YEAR}; HttpOnly; SameSite=Strict{secure}"
        return {**scope, "headers": headers}, [(b"set-cookie", cookie.encode())]

    def _measured(self, receive: Receive) -> Receive:
        """`receive` as if the sender had gone when a body goes beyond the limit, and when the server ends."""
        size = 0

        async def measured() -> Message:
            nonlocal size
            receiving, ending = asyncio.ensure_future(receive()), asyncio.ensure_future(self._ending.wait())
            try:
                await asyncio.wait((receiving, ending), return_when=asyncio.FIRST_COMPLETED)
                message: Message = receiving.result() if receiving.done() else {"type": "http.disconnect"}
            finally:
                receiving.cancel()
                ending.cancel()
            size += len(message.get("body", b""))
            return message if size <= self._limits.body_bytes else {"type": "http.disconnect"}

        return measured

    def _answered(self, send: Send, is_login: bool, new: list[tuple[bytes, bytes]]) -> Send:
        """`send` with the headers of this page and `new` ones."""
        header_names = {name for name, _ in HEADERS}

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                if is_login and message["status"] == 200:
                    self._logins.give_back()
                others = [
                    (name, LAX.sub(b"; SameSite=Lax", value) if name.lower() == b"set-cookie" else value)
                    for name, value in message.get("headers", [])
                    if name.lower() not in header_names and not name.lower().startswith(b"access-control-")
                ]
                message = {**message, "headers": [*others, *HEADERS, *new]}
            await send(message)

        return answered


def _name(host: str) -> str:
    """The name in a header Host, without the port, the brackets of IPv6 and a dot at its end."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
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


def _cookies(scope: Message) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name == b"cookie":
            pairs = (one.partition("=") for one in value.decode("latin-1").split(";"))
            found |= {key.strip(): content.strip() for key, _, content in pairs if key.strip()}
    return found


async def _refuse(send: Send, status: int, text: str, wait: float = 0.0) -> None:
    body = json.dumps({"detail": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *HEADERS]
    headers += [(b"retry-after", str(int(wait) + 1).encode())] if wait else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
