"""Several people at once on the page while its server is killed and started again: what was acknowledged is in the store."""

import json
import re
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid

import pytest

from rlhf_dialog.feedback.store.bot import Bot
from tests.parts.agents import save

pytestmark = pytest.mark.slow

NUM_PEOPLE, KILLS = 4, 1


class Person:
    """Speaks to the page as a browser does: an event is sent, and its outputs come as server-sent events."""

    def __init__(self, address, config):
        self.address, self.tab, self.cookie = address, uuid.uuid4().hex[:10], ""
        self.events = {
            (target[1], index): index for index, one in enumerate(config["dependencies"]) for target in one["targets"]
        }

    def event(self, name):
        return min(index for event, index in self.events if event == name)

    def send(self, number, data, event_data=None):
        """The outputs of the event, None when the server has gone."""
        body = {"data": data, "event_data": event_data, "fn_index": number, "session_hash": self.tab, "trigger_id": 1}
        headers = {"Content-Type": "application/json", "Cookie": self.cookie}
        try:
            join = urllib.request.Request(f"{self.address}gradio_api/queue/join", json.dumps(body).encode(), headers)
            with urllib.request.urlopen(join) as answer:
                self.cookie = (answer.headers["Set-Cookie"] or self.cookie).partition(";")[0]
            stream = f"{self.address}gradio_api/queue/data?session_hash={self.tab}"
            with urllib.request.urlopen(urllib.request.Request(stream, headers={"Cookie": self.cookie})) as answer:
                for line in answer:
                    message = json.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: ") else {}
                    if message.get("msg") == "process_completed":
                        return message["output"].get("data") if message["success"] else None
        except (OSError, ValueError, urllib.error.URLError):
            return None


def start(bot, port):
    """The server, and its address."""
    command = [sys.executable, "-m", "rlhf_dialog.feedback", "serve", "--run", str(bot.folder), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, re.search(r"http://\S+/", process.stdout.readline())[0]


def teach(person, acknowledged, enough, stop):
    """Say something and like the answer, again and again; remember what the page said was saved."""
    number = 0
    while not stop.is_set():
        text = f"{person.tab} {number}"
        number += 1
        said = person.send(person.event("submit"), [text, ""])
        if said is None or not said[2]:
            continue
        liked = {"index": 1, "value": ["x"], "liked": number % 2 == 0}
        rated = person.send(person.event("like"), [said[2]], liked)
        if rated is not None and "Saved" in str(rated[-1]):
            acknowledged.append((text, 1.0 if number % 2 == 0 else -1.0))
            enough.release()


def test_nothing_that_was_acknowledged_is_lost(tmp_path):
    bot = Bot.create(tmp_path / "bot", str(save(tmp_path / "model", {"max_new_tokens": 4, "max_prompt_length": 100})))
    process, address = start(bot, 0)
    port = int(address.split(":")[2].strip("/"))
    with urllib.request.urlopen(f"{address}config") as answer:
        config = json.load(answer)
    acknowledged, enough, stop = [], threading.Semaphore(0), threading.Event()
    people = [
        threading.Thread(target=teach, args=(Person(address, config), acknowledged, enough, stop))
        for _ in range(NUM_PEOPLE)
    ]
    try:
        for one in people:
            one.start()
        for _ in range(KILLS):
            for _ in range(NUM_PEOPLE):
                enough.acquire()
            process.kill()
            process.wait()
            process, _ = start(bot, port)
    finally:
        stop.set()
        for one in people:
            one.join()
        process.kill()
        process.wait()
    connection = sqlite3.connect(bot.store_path)
    stored = connection.execute(
        "SELECT u.text, f.value FROM feedback f JOIN turns t ON t.id = f.turn "
        "JOIN turns u ON u.dialogue = t.dialogue AND u.position = 0 WHERE f.kind = 'thumb'"
    ).fetchall()
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    assert len(acknowledged) >= KILLS * NUM_PEOPLE
    assert set(acknowledged) <= set(stored)
    assert len({text.split()[0] for text, _ in acknowledged}) > NUM_PEOPLE / 2
