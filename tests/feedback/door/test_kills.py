"""Twenty people at once with the official client, while the server is killed and started again."""

import os
import re
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("openai", reason="the API is asked with the official client")

import httpx
import openai

from rlhf_dialog.feedback.store.examples import read_examples
from tests.feedback.door.conftest import messages

PEOPLE, TURNS, KILLS = 20, 3, 3


class Server:
    """The command, on one port; `kill` ends it at once, and starts it again."""

    def __init__(self, bot, state):
        self._bot, self._state = bot, state
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._begin()

    def _begin(self):
        command = [
            sys.executable,
            "-m",
            "rlhf_dialog.feedback",
            "serve",
            "--run",
            str(self._bot.folder),
            "--api",
            "--no_page",
        ]
        environment = os.environ | {"XDG_STATE_HOME": str(self._state)}
        self._process = subprocess.Popen(
            [*command, "--port", str(self.port)], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert re.search("version 0001 answers", self._process.stdout.readline())

    def kill(self):
        self.end()
        self._begin()

    def end(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


class Person:
    """Talks, and likes each answer; `seen` are the prompts and the answers by id."""

    def __init__(self, name, url, is_streaming, acknowledged):
        self.name, self.is_streaming, self._acknowledged = name, is_streaming, acknowledged
        self._client = openai.OpenAI(
            base_url=url, api_key="none", max_retries=1000, timeout=600, default_headers={"X-OpenWebUI-User-Id": name}
        )
        self.seen = {}

    def talk(self):
        said = []
        for number in range(TURNS):
            said.append(f"{self.name} says {number}")
            name, text = self._ask_again(said, number) if self.is_streaming else self._ask(said)
            self.seen[name] = (tuple(said), text)
            rated = self._client.post("/feedback", body={"id": name, "thumb": "up"}, cast_to=dict)
            assert rated["id"] == name
            said.append(text)
            self._acknowledged.release()

    def _ask(self, said):
        answer = self._client.chat.completions.create(model="bot", messages=messages(*said))
        return answer.id, answer.choices[0].message.content

    def _ask_again(self, said, number):
        """With a stream that ends in the middle the client does nothing; who asks again names the request."""
        while True:
            try:
                chunks = list(
                    self._client.chat.completions.create(
                        model="bot",
                        messages=messages(*said),
                        stream=True,
                        extra_headers={"Idempotency-Key": f"{self.name} {number}"},
                    )
                )
            except (openai.APIError, httpx.TransportError):
                continue
            if chunks and chunks[-1].choices[0].finish_reason:
                return chunks[0].id, "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_no_acknowledged_answer_or_rating_is_lost_or_doubled_or_another_person_s(bot, tmp_path):
    bot.settings_path.write_text("api_messages_a_minute: 1000000\napi_ratings_a_minute: 1000000\n")
    server, acknowledged = Server(bot, tmp_path), threading.Semaphore(0)
    url = f"http://127.0.0.1:{server.port}/v1"
    people = [Person(f"p{i:02}", url, i % 2 == 0, acknowledged) for i in range(PEOPLE)]
    try:
        with ThreadPoolExecutor(PEOPLE) as pool:
            talks = [pool.submit(person.talk) for person in people]
            for _ in range(KILLS):
                for _ in range(PEOPLE * TURNS // (KILLS + 1)):
                    acknowledged.acquire()
                server.kill()
            for talk in talks:
                talk.result()
    finally:
        server.end()
    store = bot.store()
    seen = {name: found for person in people for name, found in person.seen.items()}
    assert len(seen) == PEOPLE * TURNS
    turns = {name: store.find_answer(name.removeprefix("chatcmpl-")) for name in seen}
    assert {name: turn.text for name, turn in turns.items()} == {name: text for name, (_, text) in seen.items()}
    stored = store.rows("SELECT id FROM turns WHERE speaker = 'agent' AND id NOT IN (SELECT turn FROM stopped)")
    assert {row[0] for row in stored} == {turn.id for turn in turns.values()}
    assert sorted(event.turn for event in store.feedback(newest=False)) == sorted(turn.id for turn in turns.values())
    names = {turn.id: name for name, turn in turns.items()}
    prompts = {names[event.turn]: event.id for event in store.feedback()}
    read = {one.event: one.prompt_turns for one in read_examples(store).answers}
    assert {name: read[event] for name, event in prompts.items()} == {
        name: prompt for name, (prompt, _) in seen.items()
    }
    assert store.copies() == set()
    store.close()
