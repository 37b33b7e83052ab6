"""What strangers send in the place of events: refused or answered, and no traceback in the log."""

import contextlib
import http.client
import json
import random
import socket
import threading

import pytest

pytest.importorskip("gradio", reason="the page needs gradio")

from bots import bot  # noqa: F401

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.page.answering import Answering
from rlhf_dialog.feedback.page.connections import PageServer
from rlhf_dialog.feedback.page.events import Events, read_json
from rlhf_dialog.feedback.page.page import Page
from rlhf_dialog.feedback.store.limits import Limits

JOIN, CANCEL = "/gradio_api/queue/join", "/gradio_api/cancel"
STRANGE = [None, "", "x", "\x00", "\ud800", -1, 7, 10**30, 1.5, True, [], {}, [[]], [None], {"index": []}, {"a": {}},
           {"__type__": "update", "value": {}}, {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}},
           float("nan")]  # fmt: skip
NO_EVENTS = [b"", b"{", b"\xff", b"[]", b"null", b"[" * 50_000, b'{"data": ' * 5_000, b'{"a": 1e999}', b'{"a": NaN}']


@pytest.fixture
def page(bot):  # noqa: F811
    store = bot.store()
    plenty = (10_000, 10_000)
    with Answering(bot, seed=0) as answering:
        yield Page(store, answering, "bot", limits=Limits(messages=plenty, ratings=plenty, looks=plenty))
    store.close()


@pytest.fixture
def port(page):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = PageServer(page.app, 1)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        page.demo.is_running = False
        thread.join()


def asked(port, path, body=None, **headers):
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


def valid_events(page):
    """An event of each of the page's functions, as a browser sends it."""
    for number, function in page.demo.fns.items():
        data = [{"radio": 3, "dropdown": None}.get(one.get_block_name(), "") for one in function.inputs]
        event = {"data": data, "event_data": None, "fn_index": number, "session_hash": "tab", "trigger_id": 5}
        if any(name == "like" for _, name in function.targets):
            event["event_data"] = {"index": 1, "value": ["x"], "liked": True}
        yield event


def changed(event, draw):
    """The event with a part of it replaced or left out."""
    event = json.loads(json.dumps(event))
    where = draw.choice([*event, "data", "data", "event_data", "number"])
    if where == "number":
        event["data"] = [*event["data"], ""][: draw.randrange(4)]
    elif isinstance(event[where], list | dict) and event[where] and draw.random() < 0.8:
        key = draw.choice(list(event[where]) if isinstance(event[where], dict) else range(len(event[where])))
        event[where][key] = draw.choice(STRANGE)
    elif draw.random() < 0.1:
        del event[where]
    else:
        event[where] = draw.choice(STRANGE)
    return event


def test_the_page_s_own_events_pass_without_what_they_do_not_need(page):
    events = Events(page.demo)
    for event in valid_events(page):
        passed = events.joined(read_json(json.dumps(event | {"batched": True, "oauth_token": "x"}).encode()))
        assert passed["data"] == event["data"]
        assert set(passed) <= {"data", "event_data", "fn_index", "session_hash", "trigger_id"}


def test_each_part_takes_values_of_its_type_alone(page):
    events = Events(page.demo)
    wrong = {"radio": (0, 9, True, "3", [3]), "dropdown": (1, [""], {}), "textbox": (None, 1, [""], {})}
    for event in valid_events(page):
        for place, part in enumerate(page.demo.fns[event["fn_index"]].inputs):
            for value in wrong[part.get_block_name()]:
                data = [value if number == place else one for number, one in enumerate(event["data"])]
                with pytest.raises(UserError, match="not an event of this page"):
                    events.joined({**event, "data": data})


@pytest.mark.parametrize("body", [*NO_EVENTS, b'{"a": "\\ud800"}'])
def test_bodies_that_are_no_events(body):
    with pytest.raises(UserError, match="not an event of this page"):
        read_json(body)


@pytest.mark.parametrize("number", [20, pytest.param(300, marks=pytest.mark.thorough)])
def test_what_is_malformed_writes_no_traceback(page, port, capfd, caplog, number):
    draw, events = random.Random(number), list(valid_events(page))
    cookie = asked(port, JOIN, json.dumps(events[0]))[1]
    for count in range(number):
        event = changed(draw.choice(events), draw)
        status, renewed, _ = asked(port, JOIN, json.dumps(event), Cookie=cookie)
        cookie = renewed or cookie  # after `forget`
        assert status in (200, 403, 422)  # 403: another page, of the person that was forgotten
        if status == 200:
            text = asked(port, f"/gradio_api/queue/data?session_hash={event['session_hash']}", Cookie=cookie)[2]
            assert b'"success":true' in text, event
        if count < 40:
            sent = {
                "session_hash": "tab",
                "event_id": "x",
                "fn_index": 0,
                draw.choice(["event_id", "fn_index"]): STRANGE[count % 19],
            }
            assert asked(port, CANCEL, json.dumps(sent), Cookie=cookie)[0] in (200, 403, 422)
    for body in NO_EVENTS:
        assert asked(port, JOIN, body)[0] == asked(port, CANCEL, body)[0] == 422
        assert asked(port, "/gradio_api/reset", body)[0] in (200, 400, 422)
    for path in ("/gradio_api/queue/data", "/gradio_api/queue/data?session_hash=%00%ff", "/static/%00", "/assets/a%ffb",
                 "/assets/../../etc/passwd", "/theme.css?a=%ff", "/gradio_api/heartbeat/other"):  # fmt: skip
        asked(port, path, Cookie=cookie)
    for name, value in (
        ("X-Forwarded-Host", "]["),
        ("Referer", "]["),
        ("X-Forwarded-Proto", "\xff"),
        ("Cookie", "\xff=;;"),
    ):
        assert asked(port, "/", **{name: value})[0] == asked(port, "/config", **{name: value})[0] == 200
    assert "Traceback" not in capfd.readouterr().err + caplog.text
    assert len(caplog.records) <= 1  # of streams that nobody has


def test_the_stream_of_a_page_is_its_person_s(page, port):
    event = next(one for one in valid_events(page) if len(one["data"]) == 2)
    cookie = asked(port, JOIN, json.dumps(event))[1]
    stream = "/gradio_api/queue/data?session_hash=tab"
    other = asked(port, JOIN, json.dumps({**event, "session_hash": "other"}))[1]
    assert [asked(port, stream, Cookie=one)[0] for one in (other, "", other.partition("=")[0])] == [403, 403, 403]
    assert b"process_completed" in asked(port, stream, Cookie=cookie)[2]


def test_a_body_without_an_end_is_cut_off(page, port):
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(f"POST {JOIN} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 1 << 26:  # the kernel takes some of it before it knows
                one.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                sent += 0x10000
    assert page.limits.body_bytes <= sent < 1 << 26
