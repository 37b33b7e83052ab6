"""People who give feedback at once, from processes that are killed at any moment: what was acknowledged is there.

A process says what it has stored on its standard output, one line an event, after `add_feedback` has returned.
"""

import json
import random
import signal
import sqlite3
import subprocess
import threading
import time
from contextlib import closing

import pytest

from rlhf_dialog.feedback.store.store import Store
from tests.parts.processes import start_python

pytestmark = pytest.mark.slow

THREADS = 2
PROGRAM = """
import json, sys, threading, time
from pathlib import Path
from rlhf_dialog.feedback.store.store import Rating, Store, TurnOrigin

store, own, lock = Store(Path(sys.argv[1])), sys.argv[2], threading.Lock()

def person(name):
    for number in range(10**6):
        dialogue = store.begin(name, "terminal")
        answer = store.add_turn(dialogue, 0, "agent", f"answer {number} to {name}", TurnOrigin([number], [-0.5]))
        event = store.add_feedback(dialogue, name, Rating("thumb", answer, 1, f"{name} {number}"))
        with lock:
            print(json.dumps([event, name, number]), flush=True)
        time.sleep(0.005)  # people think before they write again

threads = [threading.Thread(target=person, args=(f"{own}.{number}",)) for number in range(int(sys.argv[3]))]
[thread.start() for thread in threads]
"""


def acknowledged(process: subprocess.Popen, into: list[list], enough: threading.Semaphore) -> None:
    """Every whole line that the process wrote before it was killed."""
    for line in process.stdout:
        if line.endswith("]\n"):
            into.append(json.loads(line))
            enough.release()


def test_nothing_that_was_acknowledged_is_lost_by_kills(tmp_path):
    people, kills = 4, 2
    draw, said = random.Random(0), []
    store = Store.create(tmp_path / "feedback.sqlite")
    enough = threading.Semaphore(0)
    killed = 0

    def start(number):
        process = start_python("-c", PROGRAM, store.path, f"p{number}", str(THREADS), stdout=subprocess.PIPE)
        reader = threading.Thread(target=acknowledged, args=(process, said, enough))
        reader.start()
        return process, reader

    running = [start(number) for number in range(people // THREADS)]
    for number in range(kills):  # each kill is followed by a process that goes on
        for _ in range(draw.randrange(20, 60)):
            assert enough.acquire(timeout=60)
        time.sleep(draw.random() / 100)  # somewhere in a transaction
        process, reader = running.pop(draw.randrange(len(running)))
        process.send_signal(signal.SIGKILL)
        reader.join()
        killed += process.wait() == -signal.SIGKILL
        running.append(start(people + number))
    for process, reader in running:
        process.send_signal(signal.SIGKILL)
        reader.join()
        process.wait()
    assert killed == kills
    store.check()
    stored = {event.id: event for event in store.feedback(newest=False)}
    assert len(said) >= 20 * kills
    assert [stored[event].text for event, name, number in said] == [f"{name} {number}" for _, name, number in said]
    assert {store.hash_person(name) for _, name, _ in said} <= store.people()
    with closing(sqlite3.connect(store.path)) as plain:  # and nothing hangs in the air
        assert plain.execute("PRAGMA foreign_key_check").fetchall() == []
    store.close()
