"""One request over HTTP: what is sent, by which way, and which broken answers may be asked for again."""

import os
import signal
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest

from rlhf_dialog.http_client import Client, RequestFailed, in_threads
from tests.parts.servers import no_proxy, serving  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_proxy")


def client(url, headers=None, seconds=60, size=1000):
    return Client(urlsplit(url), headers or {}, seconds, size)


def ask(server, **limits):
    return client(server.url, **limits).ask("POST", "/score?n=1", b'{"dialogues": []}')


def failure(server, **limits):
    with pytest.raises(RequestFailed) as caught:
        ask(server, **limits)
    return str(caught.value), caught.value.again


def test_method_target_body_and_headers_are_sent():
    heard = []

    def listens(number, body, handler):
        heard.append((handler.command, handler.path, body, handler.headers.get_all("User-Agent")))
        return 201, b"yes"

    with serving(listens) as server:
        one = client(server.url, {"x-key": "k", "user-agent": "me"})
        assert one.ask("POST", "/score?n=1", b"{}") == one.ask("GET", "/") == b"yes"
    assert heard == [("POST", "/score?n=1", b"{}", ["me"]), ("GET", "/", b"", ["me"])]
    assert (server.headers[0]["X-Key"], server.headers[0]["Connection"]) == ("k", "close")


def test_an_answer_as_long_as_the_limit_is_read():
    with serving(lambda *_: (200, b"yes")) as server:
        assert ask(server, size=3) == b"yes"
        assert failure(server, size=2) == ("answered with more than 2 bytes", False)


def test_which_statuses_are_refusals_and_which_of_them_pass():
    statuses = [204, 299, 300, 400, 408, 429, 500, 999]
    with serving(lambda number, *_: (statuses[number - 1], b"")) as server:
        assert [ask(server), ask(server)] == [b"", b""]
        failures = [failure(server) for _ in statuses[2:]]
    assert [text.split(";")[0].split()[1] for text, _ in failures] == [str(status) for status in statuses[2:]]
    assert ["redirects" in text for text, _ in failures] == [True] + [False] * 5
    assert [again for _, again in failures] == [False, False, True, True, True, True]


def test_redirects_are_not_followed_and_proxies_of_the_environment_hear_nothing(monkeypatch):
    def elsewhere(number, body, handler):
        handler.send_response(308)
        handler.send_header("Location", other.url)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with serving(lambda *_: (200, b"")) as other, serving(elsewhere) as server:
        for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(variable, other.url)
        assert "redirects are not followed" in failure(server)[0]
        assert (len(server.requests), other.requests) == (1, [])


@pytest.mark.parametrize(
    ("before", "every"),
    [
        (b"", None),  # never answers
        pytest.param(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a", marks=pytest.mark.slow),  # headers without an end
        (b'HTTP/1.1 200 OK\r\n\r\n{"scores": [', b" "),  # a body that drips
    ],
)
def test_a_server_that_hangs(before, every):
    def answer(number, body, handler):
        handler.wfile.write(before)
        while not server.closing.wait(0.01 if every else 3):
            handler.wfile.write(every or b"")

    with serving(answer) as server:
        start = time.monotonic()
        assert failure(server, seconds=0.2, size=1 << 20) == ("gave no complete answer within 0.2 seconds", True)
        assert time.monotonic() - start >= 0.2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "cannot be reached (RemoteDisconnected"),
        (b"not HTTP at all\r\n\r\n", "cannot be reached (BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\nabc", "ended its answer 37 bytes early"),
    ],
)
def test_a_server_that_breaks_off(text, said):
    with serving(lambda number, body, handler: handler.wfile.write(text) and None) as server:
        found, again = failure(server)
    assert found.startswith(said)
    assert ("not HTTP" in found, again) == (False, True)


def test_a_server_that_is_not_there():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        refusing = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        for url, said in (
            (refusing, "ConnectionRefusedError: Connection r"),
            (f"http://{'a' * 64}.example/", "Unicode"),
        ):
            with pytest.raises(RequestFailed, match=rf"cannot be reached \({said}") as caught:
                client(url).ask("GET", "/")
            assert caught.value.again


def test_jobs_at_the_same_time_give_their_results_in_order():
    meeting = threading.Barrier(3)

    def work(job):
        if job < 3:
            meeting.wait()  # passes for three at the same time alone
        return job * job

    assert in_threads(range(7), work, 3) == [0, 1, 4, 9, 16, 25, 36]
    assert in_threads(range(2), str, 9) == ["0", "1"]
    assert in_threads([], work, 3) == []


def test_the_first_error_is_raised_while_another_job_hangs_and_no_further_one_begins():
    begun, hanging, released, ended = [], threading.Event(), threading.Event(), threading.Event()

    def work(job):
        begun.append(job)
        if job == 0:
            hanging.set()
            released.wait()
            ended.set()
        hanging.wait()
        raise KeyError(job)

    with pytest.raises(KeyError, match="1"):
        in_threads(range(5), work, 2)
    assert not ended.is_set()
    released.set()
    ended.wait()
    assert sorted(begun) == [0, 1]


def test_ctrl_c_waits_for_no_server_that_hangs_and_neither_does_the_end_of_the_process():
    released, interrupted = threading.Event(), threading.Event()

    def interrupt(*_):
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def work(job):
        while not interrupted.wait(0.01):  # a signal that comes just before the caller waits does not wake it
            os.kill(os.getpid(), signal.SIGINT)
        released.wait()

    usual, before = signal.signal(signal.SIGINT, interrupt), {*threading.enumerate()}
    try:
        with pytest.raises(KeyboardInterrupt):
            in_threads(range(2), work, 2)
        assert all(thread.daemon for thread in {*threading.enumerate()} - before)
        assert not released.is_set()
    finally:
        released.set()
        signal.signal(signal.SIGINT, usual)
