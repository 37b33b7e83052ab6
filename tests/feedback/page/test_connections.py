"""Connections that are begun and never ended, many of them, and how little of that is in the log; on 127.0.0.1 alone."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from types import SimpleNamespace

import pytest

pytest.importorskip("uvicorn", reason="the page needs uvicorn")

from bots import bot  # noqa: F401

from rlhf_dialog.feedback.page import connections
from rlhf_dialog.feedback.page.connections import PageServer, Room
from tests.feedback.page.half_sent import BEGINNINGS, HalfSent

WHOLE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
SERVER = """
import logging, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from rlhf_dialog.feedback.page import connections

class App:
    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})

    def end(self):
        pass

logging.basicConfig()
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
connections.most_connections = lambda size=connections.most_connections(): int(sys.argv[1]) or size
connections.PageServer(App(), 1).run(sockets=[listening])
"""


class Connection:
    """What a Room sees of one."""

    def __init__(self, others, closed):
        self.connections, self.transport = others, SimpleNamespace(abort=lambda: closed.append(self))
        others.add(self)


class Counts(list):
    """A tally that remembers what was added."""

    add = list.append


@pytest.fixture
def room():
    now = [0.0]
    room = Room(3, Counts(), clock=lambda: now[0])
    room.now, room.others, room.closed = now, set(), []
    return room


def waiting(room, *kinds):
    """A connection for each kind, a second after each other."""
    made = [Connection(room.others, room.closed) for _ in kinds]
    for one, kind in zip(made, kinds, strict=True):
        room.note(one, kind)
        room.now[0] += 1
    return made


def test_where_connections_run_short_the_oldest_half_sent_one_goes_first(room):
    made = waiting(room, "reading", "header", "body", "header", None)
    room.note(made[1], "idle")  # it has asked for something since
    room.make(len(room.others))
    assert room.closed == made[2:4]
    assert room.others == {made[0], made[1], made[4]}
    assert len(room._tally) == 2
    room.make(6)
    assert room.closed == [*made[2:4], made[1], made[0]]  # and never one that is answered


@pytest.mark.parametrize(("kind", "seconds"), [("header", 10), ("body", 30), ("idle", 30), ("reading", 60)])
def test_who_keeps_the_page_waiting_is_closed(room, kind, seconds):
    early, late = waiting(room, kind, kind)
    room.now[0] = seconds - 0.5
    room.close_late()
    assert room.closed == []
    room.note(early, kind)  # a byte more does not begin anew
    room.now[0] = seconds
    room.close_late()
    assert room.closed == [early]
    room.note(late, None)  # the rest has come
    room.now[0] = 1000
    room.close_late()
    assert room.closed == [early]


@contextlib.contextmanager
def serving(app, monkeypatch, size=40):
    """The port of a server in a thread."""
    monkeypatch.setattr(connections, "most_connections", lambda: size)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = PageServer(app, 1)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


async def answers(scope, receive, send):
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


def asked(port, request=WHOLE):
    """All that the server sends until it closes."""
    with socket.create_connection(("127.0.0.1", port)) as one, contextlib.suppress(ConnectionError):
        one.sendall(request)
        return b"".join(iter(lambda: one.recv(4096), b""))


@pytest.mark.parametrize(
    "beginning",
    [*BEGINNINGS, b"", WHOLE.replace(b"Connection: close\r\n", b"")],
    ids=["header", "body", "none", "idle"],
)
def test_half_sent_requests_keep_nobody_out(monkeypatch, caplog, beginning):
    with serving(answers, monkeypatch) as port, HalfSent(port, 80, beginning):
        assert all(asked(port).endswith(b"ok") for _ in range(5))
    assert {record.getMessage() for record in caplog.records} <= {connections.SHORT}
    assert len(caplog.records) <= 1


def test_a_half_sent_request_is_closed_in_time(monkeypatch):
    monkeypatch.setitem(connections.SECONDS, "header", 0.3)
    with serving(answers, monkeypatch) as port:
        assert asked(port, b"GET / HT") in (b"", None)
        assert asked(port, WHOLE.replace(b"Connection: close\r\n", b"") + b"GET").endswith(b"ok")  # after a whole one


def test_requests_that_are_none_are_one_line_of_the_log(monkeypatch, caplog):
    with serving(answers, monkeypatch) as port:
        assert all(b"400" in asked(port, b"\x00\r\n\r\n") for _ in range(20))
    assert [record.getMessage() for record in caplog.records] == ["Invalid HTTP request received."]


@contextlib.contextmanager
def server_of_few_files(log, size=0):
    """The port of a process that may open 64 files, and holds so many connections; its log."""
    command = [sys.executable, "-c", SERVER, str(size)]
    with log.open("w") as written:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=written, text=True)
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def test_more_connections_than_files(tmp_path):
    """The short version of the test below."""
    log = tmp_path / "log"
    with server_of_few_files(log) as port, HalfSent(port, 100) as half_sent:
        assert all(asked(port).endswith(b"ok") for _ in range(20))
    assert half_sent.opened > 100
    assert 1 <= len(log.read_text().splitlines()) <= 20
    assert "Traceback" not in log.read_text()


def test_connections_that_cannot_be_taken_are_one_line_of_the_log(tmp_path):
    log = tmp_path / "log"
    with server_of_few_files(log, 1000) as port, HalfSent(port, 100):
        while not log.read_text().endswith("\n"):
            time.sleep(0.05)
        time.sleep(1.5)  # asyncio tries again after a second
    assert log.read_text().splitlines() == [
        "WARNING:rlhf_dialog.feedback.page.tally:a connection could not be taken (Too many open files)"
    ]


class Person:
    """Opens the page and says something, each in so many seconds."""

    def __init__(self, address, number):
        self.address, self.tab = address, f"tab{number}"

    def opens(self):
        begun = time.monotonic()
        with urllib.request.urlopen(self.address) as answer:
            page = answer.read()
        return time.monotonic() - begun, page

    def speaks(self):
        begun = time.monotonic()
        with urllib.request.urlopen(f"{self.address}config") as answer:
            config = json.load(answer)
        number = next(i for i, one in enumerate(config["dependencies"]) if "submit" in str(one["targets"]))
        event = {"data": ["Hello", ""], "fn_index": number, "session_hash": self.tab, "trigger_id": 1}
        headers = {"Content-Type": "application/json"}
        join = urllib.request.Request(f"{self.address}gradio_api/queue/join", json.dumps(event).encode(), headers)
        with urllib.request.urlopen(join) as answer:
            headers["Cookie"] = answer.headers["Set-Cookie"].partition(";")[0]
        stream = f"{self.address}gradio_api/queue/data?session_hash={self.tab}"
        with urllib.request.urlopen(urllib.request.Request(stream, headers=headers)) as answer:
            said = next(line for line in answer if b'"process_completed"' in line)
        return time.monotonic() - begun, json.loads(said.removeprefix(b"data: "))


@pytest.mark.slow
@pytest.mark.parametrize(("beginning", "pause"), [(BEGINNINGS[0], 0.25), (BEGINNINGS[1], 1.0)], ids=["header", "body"])
def test_450_half_sent_connections_for_a_minute(bot, tmp_path, beginning, pause):  # noqa: F811
    pytest.importorskip("gradio", reason="the page needs gradio")
    log, run = tmp_path / "log", [sys.executable, "-m", "rlhf_dialog.feedback", "serve", "--run", str(bot.folder)]
    command = ["sh", "-c", 'ulimit -n 400 && exec "$@"', "sh", *run, "--port", "0"]
    with log.open("w") as written:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=written, text=True)
    try:
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        before = len(log.read_text().splitlines())
        usual = max(Person(address[0], f"before{number}").speaks()[0] for number in range(3))
        with HalfSent(int(address[1]), 450, beginning, pause):
            until, took = time.monotonic() + 60, []
            while time.monotonic() < until:
                person = Person(address[0], len(took))
                opened, page = person.opens()
                spoke, said = person.speaks()
                took.append((opened, spoke))
                assert b"gradio" in page
                assert said["success"]
                assert said["output"]["data"][-1] == ""  # no problem is told
                time.sleep(3)  # the limit of one minute is 20 messages of a person; each is another one
        lines = log.read_text().splitlines()[before:]
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
    print(
        f"slowest of {len(took)}: {max(one for one, _ in took):.2f} s and {max(one for _, one in took):.2f} s; {lines}"
    )
    assert max(max(one) for one in took) < max(5, 5 * usual)  # seconds; more on a machine that is busy without them
    assert len(lines) <= 20
