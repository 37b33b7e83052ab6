"""What passes between the network and the page: against a small application, and requests as a browser sends them."""

import asyncio
import re

import pytest

from rlhf_dialog.feedback.door import Door
from rlhf_dialog.feedback.limits import Limits

BOT = "abcdef0123456789" * 2
JOIN = "/gradio_api/queue/join"
PERSON = "0123456789abcdef" * 2


class App:
    """Answers 200, and remembers the cookies and the body of each request."""

    status = 200

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
        headers = [(b"content-security-policy", b"default-src *"), (b"x-own", b"1")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def app():
    return App()


@pytest.fixture
def door(app):
    return Door(app, BOT, Limits(body_bytes=100, logins=2, login_seconds=10), clock=lambda: 5.0)


def ask(door, path, method="GET", body=(b"",), **headers):
    """The status and the headers of an answer."""
    sent, parts = [], list(body)
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "method": method, "headers": named, "scheme": "http"}

    async def receive():
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message):
        sent.append(message)

    asyncio.run(door(scope, receive, send))
    return (sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}) if sent else None


def test_who_has_no_cookie_gets_one_with_the_first_event(door, app):
    _, headers = ask(door, JOIN, "POST")
    cookie = headers["set-cookie"]
    assert re.fullmatch(
        r"rlhf_dialog_abcdef01=[0-9a-f]{32}; Path=/; Max-Age=31536000; HttpOnly; SameSite=Strict", cookie
    )
    assert app.seen[0][0] == cookie.partition(";")[0]  # the page knows the person already


def test_a_person_keeps_the_cookie(door, app):
    _, headers = ask(door, JOIN, "POST", cookie=f"other=1; rlhf_dialog_abcdef01={PERSON}")
    assert "set-cookie" not in headers
    assert app.seen[0][0] == f"other=1; rlhf_dialog_abcdef01={PERSON}"
    assert door.person({"rlhf_dialog_abcdef01": PERSON}) == PERSON


def test_a_link_from_elsewhere_does_not_replace_the_cookie(door):
    """A browser sends a strict cookie with no such request, so it must not be taken for a new person's."""
    assert "set-cookie" not in ask(door, "/")[1]


@pytest.mark.parametrize("made_up", ["1", "x" * 32, PERSON.upper(), PERSON + "0"])
def test_ids_that_are_not_ours_are_replaced(door, made_up):
    assert door.person({"rlhf_dialog_abcdef01": made_up}) is None
    assert "set-cookie" in ask(door, JOIN, "POST", cookie=f"rlhf_dialog_abcdef01={made_up}")[1]


def test_a_forgotten_person_gets_another_id(door, app):
    door.renew(PERSON)
    ask(door, JOIN, "POST", cookie=f"rlhf_dialog_abcdef01={PERSON}; other=1")
    assert re.fullmatch("other=1; rlhf_dialog_abcdef01=[0-9a-f]{32}", app.seen[0][0])
    assert PERSON not in app.seen[0][0]


def test_through_https_the_cookie_is_secure(door):
    sent = []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    asyncio.run(door({"type": "http", "path": JOIN, "method": "POST", "headers": [], "scheme": "https"}, receive, send))
    assert dict(sent[0]["headers"])[b"set-cookie"].endswith(b"; Secure")


@pytest.mark.parametrize(
    "path",
    ["/gradio_api/upload", "/gradio_api/file=/etc/passwd", "/gradio_api/proxy=http://example.invalid", "/monitoring",
     "/gradio_api/run/say", "/gradio_api/call/say", "/gradio_api/stream/1", "/docs", "/gradio_api/token", "/a"],
)  # fmt: skip
def test_what_the_page_does_not_need_is_closed(door, app, path):
    assert ask(door, path)[0] == 404
    assert app.seen == []


def test_other_sites_send_nothing(door, app):
    assert ask(door, JOIN, "POST", sec_fetch_site="cross-site")[0] == 403
    assert app.seen == []
    assert ask(door, JOIN, "POST", sec_fetch_site="same-origin")[0] == 200


def test_requests_that_are_too_large(door, app):
    assert ask(door, JOIN, "POST", content_length="101")[0] == 413
    assert ask(door, JOIN, "POST", body=[b"x" * 60, b"x" * 60]) is None
    assert app.seen == ["gone"]
    assert ask(door, JOIN, "POST", body=[b"x" * 50, b"x" * 50])[0] == 200
    assert len(app.seen[1][1]) == 100


def test_wrong_passwords_are_slowed_down(door, app):
    app.status = 200
    for _ in range(5):
        assert ask(door, "/login", "POST")[0] == 200  # right ones are not counted
    app.status = 400
    assert [ask(door, "/login", "POST")[0] for _ in range(3)] == [400, 400, 429]
    assert ask(door, "/login/", "POST")[1]["retry-after"] == "11"
    app.status = 200
    assert ask(door, "/login", "POST")[0] == 429
    door._logins._then -= 10
    assert ask(door, "/login", "POST")[0] == 200


def test_nothing_is_loaded_from_elsewhere(door):
    headers = ask(door, "/")[1]
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' data: blob:"
    assert not re.search(r"https?:|\*", headers["content-security-policy"])
    assert headers["x-own"] == "1"


def test_a_page_that_waits_is_released_at_the_end(door, app):
    async def main():
        async def receive():
            await asyncio.Event().wait()

        waiting = asyncio.ensure_future(
            door({"type": "http", "path": "/", "method": "GET", "headers": [], "scheme": "http"}, receive, None)
        )
        await asyncio.sleep(0)
        door.end()
        await waiting

    asyncio.run(main())
    assert app.seen == ["gone"]
