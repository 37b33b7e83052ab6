"""What passes between the network and the API: against a small application, and requests as clients and browsers send them."""

import asyncio
import json

import pytest

pytest.importorskip("starlette", reason="the API needs the extra chat")

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.door.callers import Caller
from rlhf_dialog.feedback.door.guard import CallerLimits, Guard, check_origin
from rlhf_dialog.feedback.door.requests import ApiError
from rlhf_dialog.feedback.sessions.http_requests import THIS_MACHINE
from rlhf_dialog.feedback.store.settings import ApiKeys

HOST, SITE, KEY = "127.0.0.1:7860", "https://chat.example.org", "rd-0123456789abcdefghijklmnopqrstuvwxyz"
CHAT, MODELS, RATING = "/v1/chat/completions", "/v1/models", "/v1/feedback/chatcmpl-0"
ANN, BEN = Caller("ann", None, "user"), Caller("ben", None, "user")


class App:
    """Answers 200, and remembers the path and the body of each request; raises `error` where there is one."""

    def __init__(self):
        self.seen, self.error, self.begins_first = [], None, False

    async def __call__(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.seen.append((scope["path"], body))
        if self.error is not None and not self.begins_first:
            raise self.error
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
        if self.error is not None:
            raise self.error
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def app():
    return App()


def guard_of(app, hosts=THIS_MACHINE, origins=(), most_bytes=100):
    return Guard(app, ApiKeys.model_construct(api_request_bytes=most_bytes), hosts, origins)


@pytest.fixture
def guard(app):
    return guard_of(app)


def ask(guard, path=CHAT, method="POST", parts=(b"{}",), **headers):
    """The status, headers and body of an answer. Headers that are None are not sent; `parts` are what arrives, in turn."""
    sent, left = [], list(parts)
    headers = {"host": HOST, "content_type": "application/json" if method == "POST" else None, **headers}
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items() if value is not None]
    scope = {"type": "http", "path": path, "method": method, "headers": named, "scheme": "http", "query_string": b""}

    async def receive():
        return {"type": "http.request", "body": left.pop(0) if left else b"", "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    asyncio.run(guard(scope, receive, send))
    ask.unread = len(left)
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}, body


def test_a_refusal_is_an_error_as_the_clients_of_openai_read_it(guard):
    status, headers, body = ask(guard, host="evil.example")
    error = json.loads(body)["error"]
    assert (status, headers["content-type"], set(error)) == (
        403,
        "application/json",
        {"message", "type", "param", "code"},
    )
    assert (error["type"], "--allow_host" in error["message"]) == ("invalid_request_error", True)


def test_a_name_that_somebody_lets_lead_here_is_refused(guard, app):
    for host in ("evil.example", "127.0.0.1.evil.example:7860", "", "[::2]:7860", "0.0.0.0", None):
        for path, method in ((CHAT, "POST"), (MODELS, "GET"), (CHAT, "OPTIONS"), (RATING, "DELETE")):
            assert ask(guard, path, method, host=host)[0] == 403
    assert app.seen == []
    named = guard_of(app, {*THIS_MACHINE, "Chat.Example.org"})
    for host in ("127.0.0.1", "localhost:7860", "LOCALHOST.", "[::1]:7860", "chat.example.org"):
        assert ask(named, host=host)[0] == 200


WEB_PAGES = [
    *({"origin": origin} for origin in ("http://evil.example", "null", f"http://{HOST}", "", f"{SITE}.evil.example")),
    *({"sec_fetch_site": site} for site in ("cross-site", "same-site", "same-origin", "?")),
    {"origin": "http://chat.example.org"},  # not https
    {"origin": f"{SITE}:8443"},
]


@pytest.mark.parametrize("page", WEB_PAGES, ids=str)
def test_web_pages_send_nothing_and_read_nothing(app, page):
    """Those of other sites than an allowed one, and any where none is allowed, the page of the same bot too."""
    for guard in (guard_of(app), guard_of(app, origins=[SITE])):
        for path, method in ((CHAT, "POST"), (MODELS, "GET"), (CHAT, "OPTIONS"), (RATING, "DELETE")):
            status, headers, _ = ask(guard, path, method, **page, access_control_request_method="POST")
            assert status == 403
            assert not [name for name in headers if name.startswith("access-control")]
    assert app.seen == []


def test_programs_and_a_typed_address_pass_without_a_header_for_web_pages(guard):
    for headers in ({}, {"sec_fetch_site": "none"}):
        status, sent, _ = ask(guard, MODELS, "GET", **headers)
        assert status == 200
        assert not [name for name in sent if name.startswith("access-control")]


def test_an_allowed_site_sends_and_reads_and_its_browser_is_told_so(app):
    guard = guard_of(app, origins=[SITE])
    names = "authorization,content-type,x-stainless-lang"
    asked = {"origin": SITE, "sec_fetch_site": "cross-site", "access_control_request_headers": names}
    status, headers, _ = ask(guard, CHAT, "OPTIONS", access_control_request_method="POST", **asked)
    assert (status, headers["access-control-allow-origin"], headers["vary"]) == (204, SITE, "Origin")
    assert headers["access-control-allow-headers"] == names
    assert {"GET", "POST", "DELETE"} <= set(headers["access-control-allow-methods"].split(", "))
    assert "access-control-allow-credentials" not in headers
    assert app.seen == []
    for content_type, status in (("application/json", 200), ("text/plain", 415)):  # the site reads why it is refused
        got, headers, _ = ask(guard, origin=SITE, sec_fetch_site="cross-site", content_type=content_type)
        assert (got, headers["access-control-allow-origin"]) == (status, SITE)
    odd = {**asked, "access_control_request_headers": "a\r\nset-cookie: b"}
    assert (
        "access-control-allow-headers"
        not in ask(guard, CHAT, "OPTIONS", access_control_request_method="POST", **odd)[1]
    )


def test_an_allowed_site_at_the_same_address_reads_without_an_origin(app):
    """A proxy serves an application and the API: browsers send no Origin with a GET of the same one."""
    guard = guard_of(app, {"chat.example.org"}, [SITE])
    assert ask(guard, MODELS, "GET", host="chat.example.org", sec_fetch_site="same-origin")[0] == 200
    assert ask(guard, MODELS, "GET", host="chat.example.org", sec_fetch_site="same-site")[0] == 403


def test_names_of_sites():
    wanted = {"https://Chat.Example.org/": SITE, "https://chat.example.org:443": SITE, "http://localhost:3000": None}
    wanted |= {"http://a:80": "http://a", "http://a:443": None, "http://[::1]:8080": None}
    assert {text: check_origin(text) for text in wanted} == {text: name or text for text, name in wanted.items()}
    for text in (
        "*",
        "null",
        "chat.example.org",
        "https://",
        "https://a/b",
        "https://a?b",
        "ftp://a",
        "https://a@b",
        "",
    ):
        with pytest.raises(UserError, match="--allow_origin"):
            check_origin(text)


def test_only_json_passes(guard, app):
    """A form of any web page sends the other types without asking."""
    for kind in (
        "text/plain",
        "multipart/form-data",
        "application/x-www-form-urlencoded",
        "application/json2",
        "",
        None,
    ):
        assert ask(guard, content_type=kind)[0] == 415
        assert ask(guard, RATING, "DELETE", content_type=kind)[0] == 415
    assert ask(guard, content_type="application/json; charset=utf-16")[0] == 415
    assert app.seen == []
    for kind in ("application/json", "Application/JSON; charset=UTF-8"):
        assert ask(guard, content_type=kind)[0] == 200
    assert ask(guard, RATING, "DELETE", ())[0] == 200  # without a body


@pytest.mark.parametrize("length", ["300", "10", None], ids=["told", "untrue", "chunked"])
def test_a_body_is_cut_at_the_limit_as_it_arrives(guard, app, length):
    for method in ("POST", "DELETE"):
        status, headers, body = ask(
            guard, RATING, method, [b"x" * 60] * 5, content_length=length, content_type="application/json"
        )
        assert (status, headers["connection"], ask.unread) == (413, "close", 3)
        assert "api_request_bytes" in json.loads(body)["error"]["message"]
    assert app.seen == []
    assert ask(guard, parts=[b"x" * 50, b"x" * 50])[0] == 200
    assert app.seen == [(CHAT, b"x" * 100)]


def test_pages_that_describe_the_api_are_closed(guard, app):
    for path in ("/docs", "/redoc", "/openapi.json", "/", "/v1", "/v2/models", "/docs/v1/"):
        assert ask(guard, path, "GET")[0] == 404
    assert app.seen == []


def test_an_error_is_one_line_of_the_log_without_text_or_key(guard, app, caplog):
    app.error = ValueError(f"what a stranger wrote with {KEY}")
    status, _, body = ask(guard, authorization=f"Bearer {KEY}")
    assert (status, json.loads(body)["error"]["type"]) == (500, "server_error")
    assert "a request failed: ValueError in" in caplog.text
    app.begins_first = True
    with pytest.raises(
        ValueError, match="stranger"
    ):  # which ends the connection: the client sees that something is missing
        ask(guard, authorization=f"Bearer {KEY}")
    assert len(caplog.records) == 2
    for text in (caplog.text, body.decode()):
        assert KEY not in text
        assert "stranger" not in text


def test_what_a_browser_must_not_guess_or_keep(guard):
    for path in (MODELS, "/docs"):
        headers = ask(guard, path, "GET")[1]
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
        assert "default-src 'none'" in headers["content-security-policy"]
    assert ask(guard, MODELS, "GET")[1]["x-own"] == "1"


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def refusal_of(limits, *caller):
    with pytest.raises(ApiError) as caught:
        limits.count("messages", *caller)
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    return int(caught.value.headers["retry-after"])


def test_a_person_a_gateways_user_and_all_together_have_their_rates():
    clock = Clock()
    limits = CallerLimits(ApiKeys(api_messages_a_minute=2, api_times_in_all=3), clock)
    users = [Caller("gateway", user, "gateway") for user in ("u1", "u2")]
    for caller in (ANN, *users):
        limits.count("messages", caller)
        limits.count("messages", caller)
    assert [refusal_of(limits, caller) for caller in (ANN, *users)] == [30] * 3
    assert refusal_of(limits, BEN) == 10  # 6 a minute in all
    limits.count("ratings", ANN)
    clock.now += 29.5
    assert refusal_of(limits, ANN) == 1
    clock.now += 0.5
    limits.count("messages", ANN)


def test_one_visitor_does_not_use_up_what_another_may():
    limits = CallerLimits(ApiKeys(api_messages_a_minute=1), Clock())
    visitor = Caller("unknown", None, "visitor")
    for address in ("10.0.0.1", "10.0.0.2"):
        limits.count("messages", visitor, address)
        assert refusal_of(limits, visitor, address) == 60
    limits.count("messages", ANN, "10.0.0.1")
    assert refusal_of(limits, ANN, "10.0.0.2") == 60  # a person is one wherever they are


def test_answers_at_the_same_time_are_limited_by_person_and_in_all():
    limits = CallerLimits(ApiKeys(api_streams=2, api_streams_in_all=3))
    with limits.answering(ANN), limits.answering(ANN):
        with pytest.raises(ApiError, match="api_streams\\)") as caught, limits.answering(ANN):
            pass
        assert (caught.value.status, caught.value.headers["retry-after"]) == (429, "2")
        with limits.answering(BEN), pytest.raises(ApiError, match="api_streams_in_all"), limits.answering(BEN):
            pass
    with pytest.raises(KeyError), limits.answering(ANN):  # one that fails makes room, too
        raise KeyError
    with limits.answering(ANN), limits.answering(ANN):
        pass
