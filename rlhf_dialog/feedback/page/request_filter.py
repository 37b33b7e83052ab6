"""Between the network and the page: who sends a request, how large it may be, what a browser may load."""

import asyncio
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlhf_dialog.feedback.sessions.http_requests import THIS_MACHINE, is_sent_to, log_failure, read_body, replay
from rlhf_dialog.feedback.store.settings import PageKeys
from rlhf_dialog.json_files import parse_json

# The paths of Gradio that the page uses. The other ones (uploads, files, a proxy, profiles, an API for programs) are closed.
OPEN_PATHS = re.compile(
    r"/(|config|login|logout|invite|theme\.css|robots\.txt|favicon\.ico|manifest\.json|(assets|static|svelte)/[^\\\0]*"
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
INVITE = "/invite"  # where a page trades the code of its address (`#invite=CODE`, which browsers send to no server)
TRADE_CODE = """<script>{
const found = /^#invite=([\\w-]{1,100})$/.exec(location.hash);
if (found) fetch("invite", {
  method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({code: found[1]})
}).then(answer => {
  if (answer.status === 401) return;  // after the login
  history.replaceState(null, "", location.pathname);
  if (answer.ok) location.reload(); else alert("This invitation is not known, or was used before. Ask for another one.");
});
}</script>"""
ROOTS = (b"x-forwarded-host", b"x-gradio-server")  # from which Gradio would make the address of the page
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}
YEAR = 365 * 24 * 3600
ID = re.compile(r"[0-9a-f]{32}")
Name = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z_]{1,64}$")]


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


class PageEvent(BaseModel):
    """An event with the fields that the page uses; others are dropped.

    The values of its parts are texts and numbers: Gradio would take an object for a file.
    """

    model_config = ConfigDict(strict=True)

    data: list[str | int | None] = []
    event_data: Any = None
    event_id: Name = ""
    fn_index: int | None = None
    session_hash: Name = ""  # the name of a page (a browser's tab), as browsers make them up
    trigger_id: int | None = None


class RequestFilter:
    """ASGI middleware around the page of the bot with this id (32 hexadecimal digits).

    It answers only to the names `hosts` (None: to any), because a site that lets its own name lead to this machine must not read
    the page. It refuses what other sites send, paths that the page does not use, bodies above the limit, while they arrive, and
    bodies that are no events. It gives each browser a random id, signed with `secret`, and lets no one read the stream of another
    person's page (a browser's tab): that is the first person who sends an event from it. `is_logged_in` tells by the cookies who
    may see more than the form for the password, which Gradio checks. `inputs`: the functions of the page (`fn_index`), and how
    many values each takes. `trade` gives, once, the id of the person whom a code
    invites.
    """

    MOST_PAGES = 100_000

    def __init__(  # noqa: PLR0913 - all that decides who may do what
        self,
        app: ASGIApp,
        bot: str,
        limits: PageKeys,
        hosts: Collection[str] | None = THIS_MACHINE,
        is_logged_in: Callable[[Mapping[str, str]], bool] = lambda cookies: True,
        *,
        secret: str,
        inputs: Mapping[int, int],
        trade: Callable[[str], str | None],
    ):
        self._app, self._limits, self._is_logged_in, self._inputs = app, limits, is_logged_in, inputs
        self._trade = trade
        self._hosts = None if hosts is None else {name.lower() for name in hosts}
        self.cookie = SignedCookie(f"rlhf_dialog_{bot[:8]}", secret)
        self._owners: OrderedDict[str, str] = OrderedDict()  # of the pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        try:
            await self._filter(scope, receive, send)
        except HTTPException as refusal:
            headers = dict(HEADERS)
            if refusal.status_code == 413:
                headers["connection"] = "close"  # nothing more of it is read
            await JSONResponse({"detail": refusal.detail}, refusal.status_code, headers)(scope, receive, send)
        except (asyncio.CancelledError, ClientDisconnect):
            return  # the server ends while a page is open, or the sender has gone
        except Exception:  # of any kind: Gradio reads what strangers write
            log_failure()
            raise

    async def _filter(self, scope: Scope, receive: Receive, send: Send) -> None:
        if dict(scope["headers"]).get(b"x-forwarded-proto", b"").startswith(b"https"):
            scope = {**scope, "scheme": "https"}
        request = Request(scope, receive)
        self._check(request)
        body, new_cookie = b"", ""
        headers = [pair for pair in scope["headers"] if pair[0] not in ROOTS]
        if request.method == "POST":
            sent = await read_body(request, self._limits.page_request_bytes)
            if sent is None:
                raise HTTPException(413, "the request is too large")
            body = sent
        if scope["path"] == INVITE:
            await self._answer_code(request, body)(scope, receive, send)
            return
        if request.method == "POST" and scope["path"].startswith("/gradio_api/"):
            event, new_cookie = self._read_event(request, body)
            body = event.model_dump_json(exclude_unset=True).encode()
            if new_cookie:
                old = request.headers.get("cookie")
                cookies = "; ".join([*([old] if old else []), new_cookie.partition(";")[0]])
                headers = [*(pair for pair in headers if pair[0] != b"cookie"), (b"cookie", cookies.encode("latin-1"))]
        else:
            path = scope["path"].rstrip("/")
            pages = request.query_params.getlist("session_hash")
            for page in (*pages, *([path.rpartition("/")[2]] if "/heartbeat/" in path else [])):
                self._check_owner(page, self.cookie.read(request.cookies))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                of_gradio = [
                    (name, SAME_SITE.sub(b"; SameSite=Lax", value) if name.lower() == b"set-cookie" else value)
                    for name, value in message.get("headers", [])
                ]
                new_headers = MutableHeaders(raw=of_gradio)
                new_headers.update(HEADERS)
                if new_cookie:
                    new_headers.append("set-cookie", new_cookie)
                message = {**message, "headers": new_headers.raw}
            await send(message)

        await self._app({**scope, "headers": headers}, replay(body, receive), send_with_headers)

    def _check(self, request: Request) -> None:
        """Raises HTTPException by host, path, origin and login."""
        headers, path = request.headers, request.scope["path"]
        if self._hosts is not None and not is_sent_to(request, self._hosts):
            names = ", ".join(sorted(self._hosts))
            raise HTTPException(
                403, f"this page answers to the names {names} alone; start it with --allow_host NAME to add another one"
            )
        if not OPEN_PATHS.fullmatch(path):
            raise HTTPException(404, "this page does not have that")
        is_link = request.method == "GET" and path == "/"  # to this page
        of_other_site = headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not is_link
        origin = headers.get("origin")
        if of_other_site or (
            origin is not None and (origin.lower().partition("://")[2] or "null") != headers.get("host", "").lower()
        ):
            raise HTTPException(403, "another site sent this request; open the page itself")
        if not BEFORE_LOGIN.fullmatch(path) and not self._is_logged_in(request.cookies):
            raise HTTPException(401, "log in first")

    def _read_event(self, request: Request, body: bytes) -> tuple[PageEvent, str]:
        """The checked event, and the cookie that gives a new id to its sender.

        Only the page's own events get an id: a browser sends a strict cookie with them, but not with the first request after a
        link elsewhere was followed. Raises HTTPException for a body that is no event, for an event of a function that the page
        does not have, or with other values than it takes, and for the page of another person.
        """
        try:
            event = PageEvent.model_validate_json(body)
        except ValidationError:
            raise HTTPException(422, "this is not an event of this page; load it again") from None
        is_call = request.scope["path"].rstrip("/") == "/gradio_api/queue/join"
        if is_call or event.fn_index is not None:
            count = None if event.fn_index is None else self._inputs.get(event.fn_index)
            if count is None or (is_call and len(event.data) != count):
                raise HTTPException(422, "the page has no such event; load it again")
        page, person, new_cookie = event.session_hash, self.cookie.read(request.cookies), ""
        self._check_owner(page, person)
        if is_call and page:
            if person is None:
                person = secrets.token_hex(16)
                new_cookie = self._set_cookie(request, person)
            self._owners[page] = person
            self._owners.move_to_end(page)
            if len(self._owners) > self.MOST_PAGES:
                self._owners.popitem(last=False)
        return event, new_cookie

    def _answer_code(self, request: Request, body: bytes) -> Response:
        """The cookie of the person whom a code invites. Raises HTTPException for one that is not known, or was used."""
        try:
            person = self._trade(parse_json(body, dict[str, str])["code"])
        except (ValueError, LookupError):
            person = None
        if person is None:
            raise HTTPException(404, "this invitation is not known, or was used before; ask for another one")
        return Response(status_code=204, headers={**HEADERS, "set-cookie": self._set_cookie(request, person)})

    def _set_cookie(self, request: Request, person: str) -> str:
        secure = "; Secure" if request.scope["scheme"] == "https" else ""
        value = f"{self.cookie.name}={self.cookie.sign(person)}"
        return f"{value}; Path=/; Max-Age={YEAR}; HttpOnly; SameSite=Strict{secure}"

    def _check_owner(self, page: str, person: str | None) -> None:
        if self._owners.get(page) not in (None, person):
            raise HTTPException(403, "this page belongs to somebody else; load it again")
