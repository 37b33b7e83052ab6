"""The events of a page: what passes, what is refused, and whose streams can be read, against the server."""

import contextlib
import http.client
import json
import socket
import threading

import pytest

pytest.importorskip("gradio", reason="the page needs gradio")

from rlhf_dialog.feedback.commands.serve import http_server
from rlhf_dialog.feedback.page.page import FeedbackPage

JOIN = "/gradio_api/queue/join"
EVENT = {"data": ["Hello", ""], "event_data": None, "fn_index": 0, "session_hash": "tab", "trigger_id": 5}


@pytest.fixture
def page(store, answering):
    return FeedbackPage(store, answering)


@pytest.fixture
def port(page):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = http_server(page.app, 1)
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


@pytest.mark.slow
def test_the_server_says_little_and_believes_no_header(page, port):
    for header in ("X-Forwarded-Host", "X-Gradio-Server"):
        status, _, text = ask(port, "/config", **{header: "evil.example.org"})
        assert (status, b"evil" in text) == (200, False)
    config = http_server(page.app, 2).config
    assert (config.ws, config.access_log, config.server_header, config.proxy_headers) == ("none", False, False, False)
    assert (config.log_level, config.timeout_graceful_shutdown) == ("critical", 2)


@pytest.mark.slow
def test_the_stream_of_a_page_is_its_person_s(page, port):
    number = next(n for n, function in page.demo.fns.items() if len(function.inputs) == 2)
    event = EVENT | {"fn_index": number}
    cookie = ask(port, JOIN, json.dumps(event))[1]
    stream = "/gradio_api/queue/data?session_hash=tab"
    other = ask(port, JOIN, json.dumps({**event, "session_hash": "other"}))[1]
    assert [ask(port, stream, Cookie=value)[0] for value in (other, "", other.partition("=")[0])] == [403, 403, 403]
    assert b"process_completed" in ask(port, stream, Cookie=cookie)[2]


@pytest.mark.slow
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
