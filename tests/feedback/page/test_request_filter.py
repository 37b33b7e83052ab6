"""What passes between the network and the page: against a small application, and requests as a browser sends them."""

import asyncio
import json
import re
from uuid import uuid4

import pytest

from rlhf_dialog.feedback.page.request_filter import THIS_MACHINE, RequestFilter, SignedCookie
from rlhf_dialog.feedback.store.settings import PageKeys

BOT = "abcdef0123456789" * 2
JOIN = "/gradio_api/queue/join"
PERSON = "0123456789abcdef" * 2
SIGNED = SignedCookie("rlhf_dialog_abcdef01", "s").sign(PERSON)


class App:
    """Answers 200, and remembers the cookies and the body of each request."""

    status = 200
    headers = ()

    def __init__(self):
        self.seen = []

    async def __call__(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.seen.append("gone")
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.seen.append((dict(scope["headers"]).get(b"cookie", b"").decode(), body))
        headers = [(b"content-security-policy", b"default-src *"), (b"x-own", b"1"), *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def app():
    return App()


@pytest.fixture
def door(app):
    return RequestFilter(app, BOT, PageKeys.model_construct(page_request_bytes=100), secret="s")


HOST = "127.0.0.1:7860"


def ask(door, path, method="GET", body=(), query=b"", **headers):
    """The status and the headers of an answer."""
    sent, headers = [], {"host": HOST, **headers}
    parts = body if isinstance(body, list) else [json.dumps({"session_hash": uuid4().hex}).encode()]
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "method": method, "headers": named, "scheme": "http"}
    scope |= {"query_string": query}

    async def receive():
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message):
        sent.append(message)

    asyncio.run(door(scope, receive, send))
    if not sent:
        return None
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


def test_who_has_no_cookie_gets_one_with_the_first_event(door, app):
    _, headers = ask(door, JOIN, "POST")
    cookie = headers["set-cookie"]
    assert re.fullmatch(
        r"rlhf_dialog_abcdef01=[0-9a-f]{32}\.[0-9a-f]{32}; Path=/; Max-Age=31536000; HttpOnly; SameSite=Strict", cookie
    )
    assert app.seen[0][0] == cookie.partition(";")[0]  # the page knows the person already


def test_a_person_keeps_the_cookie(door, app):
    cookie = f"other=1; rlhf_dialog_abcdef01={SIGNED}"
    _, headers = ask(door, JOIN, "POST", cookie=cookie)
    assert "set-cookie" not in headers
    assert app.seen[0][0] == cookie
    assert door.cookie.read({"rlhf_dialog_abcdef01": SIGNED}) == PERSON


def test_a_link_from_elsewhere_does_not_replace_the_cookie(door):
    """A browser sends a strict cookie with no such request, so it must not be taken for a new person's."""
    assert "set-cookie" not in ask(door, "/")[1]


@pytest.mark.parametrize(
    "made_up", ["1", "x" * 32, PERSON.upper(), PERSON + "0", PERSON + "." + "0" * 32, "f" + SIGNED[1:]]
)
def test_ids_that_are_not_ours_are_replaced(door, made_up):
    assert door.cookie.read({"rlhf_dialog_abcdef01": made_up}) is None
    assert "set-cookie" in ask(door, JOIN, "POST", cookie=f"rlhf_dialog_abcdef01={made_up}")[1]


def test_through_https_the_cookie_is_secure(door):
    headers = ask(door, JOIN, "POST", x_forwarded_proto="https")[1]
    assert headers["set-cookie"].endswith("; Secure")


@pytest.mark.parametrize(
    "path",
    ["/gradio_api/upload", "/gradio_api/file=/etc/passwd", "/gradio_api/proxy=http://example.invalid", "/monitoring",
     "/gradio_api/run/say", "/gradio_api/call/say", "/gradio_api/stream/1", "/docs", "/gradio_api/token", "/a"],
)  # fmt: skip
def test_what_the_page_does_not_need_is_closed(door, app, path):
    assert ask(door, path)[0] == 404
    assert app.seen == []


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:7860", "", "[::2]:7860", "0.0.0.0", "[", "a@b"]
)
def test_a_name_that_somebody_lets_lead_here_is_refused(door, app, host):
    """DNS rebinding: to the browser the page would be one of that site, whose scripts read it."""
    for path in ("/", "/config", "/gradio_api/queue/data"):
        assert ask(door, path, host=host)[0] == 403
    assert ask(door, JOIN, "POST", host=host)[0] == 403
    assert app.seen == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:7860", "LOCALHOST.", "[::1]:7860", "[::1]", "chat.example.org"]
)
def test_names_of_this_machine_and_named_ones(app, host):
    door = RequestFilter(app, BOT, PageKeys(), {*THIS_MACHINE, "Chat.Example.org"}, secret="s")
    assert ask(door, "/", host=host)[0] == 200
    assert ask(RequestFilter(app, BOT, PageKeys(), None, secret="s"), "/", host=host.replace("127", "any"))[0] == 200


def test_the_refusal_says_what_to_do(door):
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(door({"type": "http", "path": "/", "method": "GET", "headers": [], "scheme": "http"}, None, send))
    assert json.loads(sent[1]["body"])["detail"] == (
        "this page answers to the names 127.0.0.1, ::1, localhost alone; start it with --allow_host NAME to add another one"
    )


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_send_nothing(door, app, site):
    assert ask(door, JOIN, "POST", sec_fetch_site=site)[0] == 403
    assert ask(door, "/gradio_api/heartbeat/a", sec_fetch_site=site)[0] == 403
    assert ask(door, "/logout", sec_fetch_site=site)[0] == 403
    assert app.seen == []
    assert ask(door, JOIN, "POST", sec_fetch_site="same-origin")[0] == 200
    assert ask(door, "/", sec_fetch_site=site)[0] == 200  # a link to the page


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:3000", "https://evil.example:7860", "["]
)
def test_other_origins_send_nothing(door, app, origin):
    """A browser that is too old to say what kind of site sent a request still says which one."""
    assert ask(door, JOIN, "POST", origin=origin)[0] == 403
    assert ask(door, "/config", origin=origin)[0] == 403
    assert ask(door, JOIN, "OPTIONS", origin=origin, access_control_request_headers="x-forwarded-host")[0] == 403
    assert app.seen == []


def test_the_page_s_own_origin(app, door):
    assert ask(door, JOIN, "POST", origin=f"http://{HOST}")[0] == 200
    behind_proxy = RequestFilter(app, BOT, PageKeys(), {"chat.example.org"}, secret="s")
    for origin, status in (("https://Chat.example.org", 200), ("https://abc.example", 403)):
        given = {"host": "chat.example.org", "x_forwarded_host": "abc.example", "origin": origin}
        assert ask(behind_proxy, JOIN, "POST", **given)[0] == status


def test_requests_that_are_too_large(door, app):
    status, headers = ask(door, JOIN, "POST", body=[b"x" * 101])
    assert (status, headers["connection"]) == (413, "close")
    assert app.seen == []
    assert ask(door, "/login", "POST", body=[b"x" * 50, b"x" * 50])[0] == 200
    assert len(app.seen[0][1]) == 100


@pytest.mark.parametrize("path", [JOIN, "/login", "/gradio_api/cancel", "/gradio_api/reset"])
def test_a_body_without_a_length_is_cut_at_the_limit_as_it_arrives(door, app, path):
    parts = [b"x" * 60] * 5
    status, headers = ask(door, path, "POST", body=parts)
    assert (status, headers["connection"], len(parts)) == (413, "close", 3)
    assert app.seen == []


def test_nothing_is_loaded_from_elsewhere(door):
    headers = ask(door, "/")[1]
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' data: blob:"
    assert not re.search(r"https?:|\*", headers["content-security-policy"])
    assert headers["x-own"] == "1"


def test_a_page_is_read_and_left_by_its_own_person_alone(door, app):
    join = [b'{"session_hash": "tab"}']
    assert ask(door, JOIN, "POST", body=join[:], cookie=f"rlhf_dialog_abcdef01={SIGNED}")[0] == 200
    other = f"rlhf_dialog_abcdef01={SignedCookie('rlhf_dialog_abcdef01', 's').sign('cd' * 16)}"
    for cookie, status in ((other, 403), ("", 403), (f"rlhf_dialog_abcdef01={SIGNED}", 200)):
        given = {"cookie": cookie} if cookie else {}
        assert ask(door, "/gradio_api/queue/data", query=b"session_hash=tab", **given)[0] == status
        assert ask(door, "/gradio_api/queue/data", query=b"session_hash=1&session_hash=%74ab", **given)[0] == status
        assert ask(door, "/gradio_api/heartbeat/tab", **given)[0] == status
        assert ask(door, "/gradio_api/cancel", "POST", body=join[:], **given)[0] == status
        assert ask(door, JOIN, "POST", body=join[:], **given)[0] == status


def test_the_oldest_pages_are_forgotten(door, monkeypatch):
    monkeypatch.setattr(RequestFilter, "MOST_PAGES", 2)
    for page in "123":
        ask(door, JOIN, "POST", body=[json.dumps({"session_hash": page}).encode()])
    assert [*door._owners] == ["2", "3"]


def test_a_signature_is_of_one_cookie_and_one_secret():
    value = SignedCookie("a", "s").sign(PERSON)
    assert SignedCookie("a", "s").read({"a": value}) == PERSON
    assert SignedCookie("b", "s").read({"b": value}) is None
    assert SignedCookie("a", "t").read({"a": value}) is None
    assert SignedCookie("a", "s").read({"a": f"{value}0"}) is None
    assert SignedCookie("a", "s").read({"a": "\u0660" * 32}) is None


def test_a_server_that_ends_cancels_a_request_in_silence(door, monkeypatch, caplog):
    async def waits(scope, receive, send):
        raise asyncio.CancelledError

    monkeypatch.setattr(door, "_app", waits)
    assert ask(door, "/gradio_api/queue/data") is None
    assert caplog.records == []


def test_an_error_is_one_line_of_the_log_without_what_a_stranger_wrote(door, monkeypatch, caplog):
    async def fails(scope, receive, send):
        raise ValueError("what a stranger wrote")

    monkeypatch.setattr(door, "_app", fails)
    assert ask(door, "/gradio_api/queue/data")[0] == 500
    assert re.search(r"a request failed: ValueError in .*test_request_filter.py:\d+\n", caplog.text)
    assert "stranger" not in caplog.text


def test_a_page_is_moved_by_no_header_of_a_stranger(app):
    door = RequestFilter(app, BOT, PageKeys(), {"127.0.0.1", "chat.example.org"}, secret="s")
    heard = []

    async def listens(scope, receive, send):
        heard.append({name for name, _ in scope["headers"]})
        await app(scope, receive, send)

    door._app = listens
    for header in ("x_forwarded_host", "x_gradio_server"):
        assert ask(door, "/config", **{header: "http://evil.example.org"})[0] == 200
        assert header.replace("_", "-").encode() not in heard.pop()


@pytest.mark.parametrize(
    ("event", "status"),
    [
        ({"fn_index": 0, "data": ["a", None]}, 200),
        ({"fn_index": 7, "data": ["a", None]}, 422),
        ({"fn_index": -1, "data": ["a", None]}, 422),
        ({"fn_index": "0", "data": ["a", None]}, 422),
        ({"fn_index": False, "data": ["a", None]}, 422),
        ({"fn_index": None, "data": ["a", None]}, 422),
        ({"data": ["a", None]}, 422),
        ({"fn_index": 0, "data": ["a"]}, 422),
        ({"fn_index": 0}, 422),
    ],
)
def test_only_events_of_the_page_s_functions_pass(app, event, status):
    door = RequestFilter(app, BOT, PageKeys(), secret="s", inputs={0: 2, 1: 0})
    assert ask(door, JOIN, "POST", [json.dumps(event | {"session_hash": "tab"}).encode()])[0] == status
    assert len(app.seen) == (status == 200)
