"""What passes between the network and the page: against a small application, and requests as a browser sends them."""

import asyncio
import json
import re
from uuid import uuid4

import pytest

pytest.importorskip("gradio", reason="the page needs gradio")

from rlhf_dialog.feedback.page.request_filter import RequestFilter, SignedCookie
from rlhf_dialog.feedback.sessions.http_requests import THIS_MACHINE
from rlhf_dialog.feedback.store.settings import PageKeys

BOT = "abcdef0123456789" * 2
JOIN = "/gradio_api/queue/join"
PERSON = "0123456789abcdef" * 2
COOKIE = SignedCookie("rlhf_dialog_abcdef01", "s")
SIGNED, OTHER = (f"rlhf_dialog_abcdef01={COOKIE.sign(person)}" for person in (PERSON, "cd" * 16))
HOST = "127.0.0.1:7860"


class App:
    """Answers 200, and remembers the headers and the body of each request; raises `error` where there is one."""

    def __init__(self):
        self.seen, self.error, self.schemes = [], None, []

    async def __call__(self, scope, receive, send):
        if self.error is not None:
            raise self.error
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.seen.append((dict(scope["headers"]), body))
        self.schemes.append(scope["scheme"])
        headers = [(b"content-security-policy", b"default-src *"), (b"x-own", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def app():
    return App()


def filter_of(app, hosts=THIS_MACHINE, most_bytes=100, *codes):
    """Each of these codes is an invitation, once."""
    limits, left = PageKeys.model_construct(page_request_bytes=most_bytes), dict.fromkeys(codes, PERSON)
    return RequestFilter(
        app, BOT, limits, hosts, secret="s", inputs={0: 2, 1: 0}, trade=lambda code: left.pop(code, None)
    )


@pytest.fixture
def door(app):
    return filter_of(app)


def event(page="", **fields):
    return json.dumps({"fn_index": 1, "data": [], "session_hash": page or uuid4().hex, **fields}).encode()


def ask(door, path, method="GET", body=(), query=b"", **headers):
    """The status and the headers of an answer; None where there is none. Those that are None are not sent."""
    sent, headers = [], {"host": HOST, **headers}
    parts = body if isinstance(body, list) else [event()]
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items() if value is not None]
    scope = {"type": "http", "path": path, "method": method, "headers": named, "scheme": "http", "query_string": query}

    async def receive():
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message):
        sent.append(message)

    asyncio.run(door(scope, receive, send))
    return (sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}) if sent else None


def test_who_has_no_cookie_gets_one_with_the_first_event_and_keeps_it(door, app):
    assert "set-cookie" not in ask(door, "/")[1]  # a browser sends no strict cookie with a link from elsewhere
    cookie = ask(door, JOIN, "POST")[1]["set-cookie"]
    assert re.fullmatch(
        r"rlhf_dialog_abcdef01=[0-9a-f]{32}\.[0-9a-f]{32}; Path=/; Max-Age=31536000; HttpOnly; SameSite=Strict", cookie
    )
    assert app.seen[-1][0][b"cookie"].decode() == cookie.partition(";")[0]  # the page knows the person already
    assert ask(door, JOIN, "POST", x_forwarded_proto="https")[1]["set-cookie"].endswith("; Secure")
    assert app.schemes[-2:] == ["http", "https"]
    assert "set-cookie" not in ask(door, JOIN, "POST", cookie=f"other=1; {SIGNED}")[1]
    assert app.seen[-1][0][b"cookie"].decode() == f"other=1; {SIGNED}"


def test_an_id_is_of_one_cookie_and_one_secret_and_others_are_replaced(door):
    value, name = COOKIE.sign(PERSON), COOKIE.name
    assert door.cookie.read({name: value}) == PERSON
    assert SignedCookie("b", "s").read({"b": value}) is None
    assert SignedCookie(name, "t").read({name: value}) is None
    for made_up in ("1", PERSON, PERSON.upper(), PERSON + "." + "0" * 32, "f" + value[1:], f"{value}0", "\u0660" * 32):
        assert door.cookie.read({name: made_up}) is None
    assert "set-cookie" in ask(door, JOIN, "POST", cookie=f"{name}={PERSON}.{'0' * 32}")[1]


def test_what_the_page_does_not_need_is_closed(door, app):
    closed = ("upload", "file=/etc/passwd", "proxy=http://example.invalid", "run/say", "call/say", "stream/1", "token")
    for path in (*(f"/gradio_api/{name}" for name in closed), "/monitoring", "/docs", "/a"):
        assert ask(door, path)[0] == 404
    assert app.seen == []


def test_a_name_that_somebody_lets_lead_here_is_refused(door, app):
    """DNS rebinding: to the browser the page would be one of that site, whose scripts read it."""
    for host in ("evil.example", "127.0.0.1.evil.example:7860", "", "[::2]:7860", "0.0.0.0", "[", "a@b", None):
        for path, method in (("/", "GET"), ("/config", "GET"), (JOIN, "POST")):
            assert ask(door, path, method, host=host)[0] == 403
    assert app.seen == []
    named = filter_of(app, {*THIS_MACHINE, "Chat.Example.org"})
    for host in ("127.0.0.1", "localhost:7860", "LOCALHOST.", "[::1]:7860", "[::1]", "chat.example.org"):
        assert ask(named, "/", host=host)[0] == 200
    assert ask(filter_of(app, None), "/", host="any.example")[0] == 200


def test_other_sites_send_nothing(door, app):
    """A browser that is too old to say what kind of site sent a request still says which one: its origin."""
    for site in ("cross-site", "same-site"):
        for path, method in ((JOIN, "POST"), ("/gradio_api/heartbeat/a", "GET"), ("/logout", "GET"), ("/", "POST")):
            assert ask(door, path, method, sec_fetch_site=site)[0] == 403
        assert app.seen == []
    for origin in ("http://evil.example", "null", "http://127.0.0.1:3000", "https://evil.example:7860", "["):
        for path, method in ((JOIN, "POST"), ("/config", "GET"), (JOIN, "OPTIONS")):
            assert ask(door, path, method, origin=origin, x_forwarded_host="evil.example")[0] == 403
    assert app.seen == []
    assert ask(door, JOIN, "POST", sec_fetch_site="same-origin")[0] == 200
    assert ask(door, "/", sec_fetch_site="cross-site")[0] == 200  # a link to the page
    assert ask(door, JOIN, "POST", origin=f"http://{HOST}")[0] == 200
    proxy = filter_of(app, {"chat.example.org"})
    assert ask(proxy, JOIN, "POST", host="chat.example.org", origin="https://Chat.example.org")[0] == 200


@pytest.mark.parametrize("path", [JOIN, "/login"])
def test_a_body_is_cut_at_the_limit_as_it_arrives(door, app, path):
    parts = [b"x" * 60] * 5
    status, headers = ask(door, path, "POST", body=parts)
    assert (status, headers["connection"], len(parts)) == (413, "close", 3)
    assert ask(door, path, "POST", body=[b"x" * 101])[0] == 413
    assert app.seen == []
    assert ask(door, "/login", "POST", body=[b"x" * 50, b"x" * 50])[0] == 200
    assert len(app.seen[0][1]) == 100


def test_nothing_is_loaded_from_elsewhere(door):
    headers = ask(door, "/")[1]
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' data: blob:"
    assert not re.search(r"https?:|\*", headers["content-security-policy"])
    assert (headers["x-own"], headers["x-frame-options"]) == ("1", "DENY")
    assert ask(door, "/a")[1]["x-content-type-options"] == "nosniff"


def test_a_page_is_read_and_left_by_its_own_person_alone(door, monkeypatch):
    assert ask(door, JOIN, "POST", [event("tab")], cookie=SIGNED)[0] == 200
    for cookie, status in ((OTHER, 403), (None, 403), (SIGNED, 200)):
        for query in (b"session_hash=tab", b"session_hash=1&session_hash=%74ab"):
            assert ask(door, "/gradio_api/queue/data", query=query, cookie=cookie)[0] == status
        assert ask(door, "/gradio_api/heartbeat/tab", cookie=cookie)[0] == status
        for path in ("/gradio_api/cancel", JOIN):
            assert ask(door, path, "POST", [event("tab")], cookie=cookie)[0] == status
    monkeypatch.setattr(RequestFilter, "MOST_PAGES", 2)
    for page in "12":
        ask(door, JOIN, "POST", [event(page)])
    assert [*door._owners] == ["1", "2"]


def test_an_error_is_one_line_of_the_log_without_what_a_stranger_wrote(door, app, caplog):
    app.error = asyncio.CancelledError()  # the server ends
    assert ask(door, "/gradio_api/queue/data") is None
    assert caplog.records == []
    app.error = ValueError("what a stranger wrote")
    with pytest.raises(ValueError, match="stranger"):  # which the server answers with 500
        ask(door, "/gradio_api/queue/data")
    assert re.search(r"a request failed: ValueError in .*test_request_filter.py:\d+\n", caplog.text)
    assert "stranger" not in caplog.text


def test_a_code_is_traded_once_for_the_cookie_of_whom_it_invites(app):
    door, code = filter_of(app, THIS_MACHINE, 100, "c0de"), json.dumps({"code": "c0de"}).encode()
    for body in (b"", b"{}", b'{"code": 1}', b'{"code": "C0DE"}', b"x" * 101):
        assert ask(door, "/invite", "POST", [body])[0] in (404, 413)
    for headers in ({"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"}, {"host": "evil.example"}):
        assert ask(door, "/invite", "POST", [code], **headers)[0] == 403
    assert ask(door, "/invite", "GET", [code])[0] == 404
    status, headers = ask(door, "/invite", "POST", [code], cookie=OTHER)
    assert (status, headers["set-cookie"].partition(";")[0]) == (204, SIGNED)
    assert {"HttpOnly", "SameSite=Strict"} <= set(headers["set-cookie"].split("; "))
    status, headers = ask(door, "/invite", "POST", [code])
    assert (status, "set-cookie" in headers) == (404, False)
    assert app.seen == []


def test_a_code_is_not_used_up_before_the_login(app):
    door, code = filter_of(app, THIS_MACHINE, 100, "c0de"), json.dumps({"code": "c0de"}).encode()
    door._is_logged_in = lambda cookies: "token" in cookies
    assert ask(door, "/invite", "POST", [code])[0] == 401
    assert ask(door, "/invite", "POST", [code], cookie="token=1")[0] == 204


NO_EVENTS = [b"", b"{", b"\xff", b"[]", b"null", b"[" * 90]
NO_EVENTS += [b'{"data": 1}', b'{"data": ["\\ud800"]}', b'{"data": [NaN]}']
FILE = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}


@pytest.mark.parametrize(
    "body",
    [
        *NO_EVENTS,
        *(event("tab", fn_index=index, data=["a", None]) for index in (7, -1, "0", False, None, 1)),
        *(event("tab", fn_index=0, data=data) for data in (["a"], [], [{}, None], [FILE, ""], [1.5, None], "ab")),
        *(event(page, fn_index=0, data=["a", None]) for page in ("a b", "x" * 65, 1)),
        *(json.dumps({"fn_index": 1, "data": [], "session_hash": page}).encode() for page in ("", None)),
    ],
)
def test_bodies_that_are_no_events_of_the_page_are_refused(app, body):
    assert ask(filter_of(app, most_bytes=500), JOIN, "POST", [body])[0] == 422
    assert app.seen == []


def test_an_event_passes_without_what_the_page_does_not_use(app):
    door = filter_of(app, most_bytes=500)
    sent = {"fn_index": 0, "data": ["a", None], "session_hash": "tab", "trigger_id": 5, "event_data": None}
    assert ask(door, JOIN, "POST", [json.dumps(sent | {"oauth_token": "x"}).encode()])[0] == 200
    assert json.loads(app.seen[0][1]) == sent
    assert ask(door, "/gradio_api/cancel", "POST", [b'{"session_hash": "tab", "event_id": "x"}'])[0] == 403
