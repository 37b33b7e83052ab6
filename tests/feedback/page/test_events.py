"""The events of a page: what passes, what is refused, and whose streams can be read, against the server."""

import contextlib
import http.client
import json
import socket
import threading

import pytest

pytest.importorskip("gradio", reason="the page needs gradio")

from rlhf_dialog.feedback.page.page import FeedbackPage, page_server
from rlhf_dialog.feedback.page.request_filter import RequestRefused, read_event

JOIN, CANCEL = "/gradio_api/queue/join", "/gradio_api/cancel"
EVENT = {"data": ["Hello", ""], "event_data": None, "fn_index": 0, "session_hash": "tab", "trigger_id": 5}
FILE = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
NO_EVENTS = [
    *[b"", b"{", b"\xff", b"[]", b"null", b"[" * 50_000, b'{"data": 1}', b'{"data": [NaN]}', b'{"data": ["\\ud800"]}'],
    *[json.dumps({"data": [value]}).encode() for value in (FILE, [], {}, 1.5)],
    *[json.dumps({"session_hash": name}).encode() for name in ("", "a b", "x" * 65, None, 1)],
]


@pytest.fixture
def page(store, answering):
    return FeedbackPage(store, answering)


@pytest.fixture
def port(page):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = page_server(page.app, 1)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        page.demo.is_running = False
        thread.join()


def ask(port, path, body=None, **headers):
    """The status, the cookie and the text of an answer; of a stream, what comes until an event has ended."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with contextlib.closing(connection):
        headers = {"Content-Type": "application/json", **headers}
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer, lines = connection.getresponse(), []
        for line in answer:
            lines.append(line)
            if b"process_completed" in line or b"unexpected_error" in line or b"ALIVE" in line:
                break
        cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
        return answer.status, cookie, b"".join(lines)


def test_an_event_passes_without_what_the_page_does_not_use():
    assert read_event(json.dumps(EVENT | {"batched": True, "oauth_token": "x"}).encode()) == EVENT


@pytest.mark.parametrize("body", NO_EVENTS)
def test_bodies_that_are_no_events(body):
    with pytest.raises(RequestRefused, match="not an event of this page"):
        read_event(body)


def test_the_server_refuses_bodies_that_are_no_events_and_believes_no_header(port):
    for body in NO_EVENTS[:5]:
        assert ask(port, JOIN, body)[0] == ask(port, CANCEL, body)[0] == 422
    for header in ("X-Forwarded-Host", "X-Gradio-Server"):
        status, _, text = ask(port, "/config", **{header: "evil.example.org"})
        assert (status, b"evil" in text) == (200, False)


def test_the_stream_of_a_page_is_its_person_s(page, port):
    number = next(n for n, function in page.demo.fns.items() if len(function.inputs) == 2)
    event = EVENT | {"fn_index": number}
    cookie = ask(port, JOIN, json.dumps(event))[1]
    stream = "/gradio_api/queue/data?session_hash=tab"
    other = ask(port, JOIN, json.dumps({**event, "session_hash": "other"}))[1]
    assert [ask(port, stream, Cookie=value)[0] for value in (other, "", other.partition("=")[0])] == [403, 403, 403]
    assert b"process_completed" in ask(port, stream, Cookie=cookie)[2]


def test_what_a_stranger_sends_is_in_no_line_of_the_terminal(page, port, capfd, caplog):
    forged = "\x1b[31m\nwarning: forged"
    for number, function in page.demo.fns.items():
        event = EVENT | {"fn_index": number, "session_hash": f"tab{number}", "data": [forged] * len(function.inputs)}
        status, cookie, _ = ask(port, JOIN, json.dumps(event))
        assert status == 200
        ask(port, f"/gradio_api/queue/data?session_hash=tab{number}", Cookie=cookie)
    for event in (EVENT | {"fn_index": 10**6}, EVENT | {"data": [forged] * 9}, {"session_hash": "tab"}):
        assert ask(port, JOIN, json.dumps(event))[0] == 422
    said = capfd.readouterr()
    assert "forged" not in said.out + said.err + caplog.text
    assert "a request failed: " in caplog.text  # a choice that its list does not have
