"""Requests that are repeated, readers that leave, and what of them is on disk."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from rlhf_dialog.feedback.door import answers as module
from rlhf_dialog.feedback.door.answers import Answers
from rlhf_dialog.feedback.sessions import batched_generation
from tests.feedback.door.conftest import messages, read_events, text_of
from tests.parts.bots import rows

TURNS = "SELECT position, speaker, text FROM turns ORDER BY id"


def test_a_request_with_a_key_is_answered_once(ask, bot, door, store, answering):
    keys = {"headers": {"Idempotency-Key": "k1"}}
    first = ask("Hello", n=2, **keys)
    door.answers = Answers(store, answering)  # as after a restart
    again = ask("Hello", n=2, **keys)
    assert {**again, "created": first["created"]} == first
    events = ask.stream("Hello", headers={"Idempotency-Key": "k2"})
    assert (
        read_events(ask.post("Hello", stream=True, headers={"Idempotency-Key": "k2"}).text)[0]["id"] == events[0]["id"]
    )
    assert ask.post("Hello", **keys).status_code == 422
    assert ask("Hello", headers={"Idempotency-Key": "k1", "X-OpenWebUI-User-Id": "ann"})["id"] != first["id"]
    assert ask("Hello", headers={"Idempotency-Key": "k3"})["id"] != first["id"]
    assert rows(bot, "SELECT count(*) FROM turns WHERE speaker = 'user'") == [(4,)]
    assert "k1" not in str(rows(bot, "SELECT * FROM requests"))


def test_a_retry_of_the_official_client_gets_the_answer_of_the_first_try(ask, bot, door, store, answering, monkeypatch):
    def tried(count, text="Hello"):
        return ask(text, headers={"x-stainless-retry-count": str(count)})

    first = tried(0)
    second = tried(0)  # not a retry: somebody says the same again
    assert second["id"] != first["id"]
    door.answers = Answers(store, answering)
    again = tried(1)
    assert {**again, "created": second["created"]} == second
    assert tried(2, "Hi")["id"] not in (first["id"], second["id"])
    monkeypatch.setattr(module, "RETRY_AGE", 0.0)
    assert tried(1)["id"] != second["id"]
    assert rows(bot, "SELECT count(*) FROM answers") == [(4,)]


class Pace:
    """The generation, which waits for a release of `go` after each of these numbers of tokens."""

    def __init__(self, monkeypatch, *numbers):
        self.numbers, self.go, self.waits, self.batches = numbers, threading.Semaphore(0), threading.Event(), 0
        self._stream = batched_generation.stream
        monkeypatch.setattr(batched_generation, "stream", self)

    def __call__(self, agent, prompts, show, numbers, systems):
        self.batches += 1
        tokens = count()

        def show_at_the_pace(replies):
            if next(tokens) in self.numbers:
                self.waits.set()
                assert self.go.acquire(timeout=60)
            return show(replies)

        self._stream(agent, prompts, show_at_the_pace, numbers, systems)


def test_a_retry_joins_the_answer_that_runs(ask, bot, monkeypatch):
    pace = Pace(monkeypatch, 2)
    with ThreadPoolExecutor() as people:
        first = people.submit(ask, "Hello", headers={"x-stainless-retry-count": "0"})
        assert pace.waits.wait(60)
        second = people.submit(ask, "Hello", headers={"x-stainless-retry-count": "1"})
        with pytest.raises(TimeoutError):
            second.result(timeout=0.05)
        pace.go.release()
        assert first.result() == second.result()
    assert (pace.batches, rows(bot, "SELECT count(*) FROM answers")) == (1, [(1,)])


async def leave(app, body, headers=(), until="", on_text=None, after=None):
    """A client that leaves: when more of a stream comes than `until`, which it does not take, or after an event.

    When it has got all of `until`, it calls `on_text`.
    """
    gone, said, told, sent = asyncio.Event(), "", [], [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def receive():
        if sent:
            return sent.pop()
        await (gone.wait() if after is None else asyncio.to_thread(after.wait, 60))
        return {"type": "http.disconnect"}

    async def send(message):
        nonlocal said
        for event in read_events(message.get("body", b"").decode()) if message.get("body") else []:
            said += event["choices"][0]["delta"].get("content", "")
        if said and said == until and not told:
            told.append(on_text())
        if said != until[: len(said)]:
            gone.set()
            await asyncio.Event().wait()

    names = [(b"content-type", b"application/json"), *headers]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": names, "query_string": b""}
    await app({**scope, "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 80)}, receive, send)


def wait_for_answers(door):
    for running in list(door.answers._running):
        assert running.ended.wait(60)


def test_of_a_stream_that_is_left_the_text_so_far_is_stored_and_is_history(
    ask, bot, door, store, answering, monkeypatch
):
    texts = [one.text for one in answering.stream(["Hello"], answering.begin(), 3)]
    number, read = next((i, text) for i, text in enumerate(texts, 1) if len(text) > 1)
    assert read != texts[-2]  # more of it comes before the last token
    pace = Pace(monkeypatch, number, len(texts) - 1)
    body = {"model": "bot", "messages": messages("Hello"), "stream": True, "seed": 3}
    asyncio.run(leave(door.app, body, until=read, on_text=pace.go.release))
    pace.go.release()
    wait_for_answers(door)
    assert rows(bot, TURNS) == [(0, "user", "Hello"), (1, "agent", read)]
    assert rows(bot, "SELECT turn FROM stopped") == rows(bot, "SELECT id FROM turns WHERE position = 1")
    pace.numbers = ()
    later = ask("Hello", read, "And ?")
    assert store.find_answer(later["id"].removeprefix("chatcmpl-")).position == 3
    assert answering._served._holders.total() == 1  # of this test


def test_who_leaves_without_a_stream_and_does_not_come_back_stops_the_answer(bot, door, monkeypatch):
    pace = Pace(monkeypatch, 1)
    asyncio.run(leave(door.app, {"model": "bot", "messages": messages("Hello")}, after=pace.waits))
    pace.go.release()
    wait_for_answers(door)
    (turn,) = rows(bot, "SELECT token_ids FROM turns WHERE position = 1")
    assert len(json.loads(turn[0])) < 8
    assert len(rows(bot, "SELECT * FROM stopped")) == 1


def test_who_may_come_back_finds_the_answer_and_it_counts(ask, bot, door, monkeypatch):
    pace = Pace(monkeypatch, 1)
    body = {"model": "bot", "messages": messages("Hello")}
    asyncio.run(leave(door.app, body, [(b"x-stainless-retry-count", b"0")], after=pace.waits))
    pace.go.release()
    answer = ask("Hello", headers={"x-stainless-retry-count": "1"})
    assert rows(bot, TURNS) == [(0, "user", "Hello"), (1, "agent", text_of(answer))]
    assert rows(bot, "SELECT * FROM stopped") == []


def test_a_task_of_a_program_is_answered_and_not_stored(ask, bot):
    assert text_of(ask("A title ?", headers={"X-Task": "title_generation"})) is not None
    assert rows(bot, "SELECT * FROM dialogues") == []
    ask("Hello", headers={"X-Task": "{{TASK}}", "X-Message-Id": "{{MESSAGE_ID}}"})
    ask("Hello", headers={"X-Task": "", "X-Message-Id": "m1"})
    assert rows(bot, "SELECT count(*) FROM dialogues") == [(2,)]
    ((turn, stored),) = rows(bot, "SELECT * FROM messages")
    assert (stored, turn) == (bot.store().hash_outside("m1"), rows(bot, "SELECT max(id) FROM turns")[0][0])


def test_what_grows_when_the_server_ends_is_stored_as_far_as_it_was_read(bot, door, answering, monkeypatch):
    pace = Pace(monkeypatch, 1)
    running = door.answers.begin(
        module.Caller("somebody", None, "owner"),
        module_request("Hello"),
        module.Context(),
        None,
        threading.Lock(),
    )
    assert pace.waits.wait(60)
    ending = threading.Thread(target=door.answers.close)
    ending.start()
    while not running.is_left:
        pass
    pace.go.release()
    ending.join()
    assert running.error.status == 503
    assert rows(bot, "SELECT position FROM turns") == [(0,), (1,)]
    assert len(rows(bot, "SELECT * FROM stopped")) == 1


def module_request(*texts, **keys):
    from rlhf_dialog.feedback.door.requests import read_chat_request

    return read_chat_request({"model": "bot", "messages": messages(*texts), **keys})
