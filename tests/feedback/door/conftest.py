"""The API of a tiny bot, asked within the process."""

import json

import pytest

pytest.importorskip("starlette", reason="the API needs starlette")
pytest.importorskip("httpx", reason="starlette's client needs httpx")

from starlette.testclient import TestClient

from rlhf_dialog.feedback.door.app import Door
from rlhf_dialog.feedback.door.callers import Callers
from rlhf_dialog.feedback.store.people import People


@pytest.fixture
def door(bot, store, answering):
    door = Door(bot, store, answering, Callers(People.load(bot.folder), store, "somebody"))
    yield door
    door.answers.close()


@pytest.fixture
def ask(door):
    return Asking(TestClient(door.app, base_url="http://127.0.0.1"))


def messages(*texts, system=None):
    """As a client sends a dialogue whose last turn is the user's."""
    said = [{"role": ("assistant", "user")[(len(texts) - i) % 2], "content": text} for i, text in enumerate(texts)]
    return [*([{"role": "system", "content": system}] if system else []), *said]


class Asking:
    """A client that asks the bot."""

    def __init__(self, client):
        self.client = client

    def post(self, *texts, headers=None, system=None, **keys):
        body = {"model": "bot", "messages": messages(*texts, system=system)} | keys
        return self.client.post("/v1/chat/completions", json=body, headers=headers)

    def __call__(self, *texts, **keys):
        """The object of an answer."""
        response = self.post(*texts, **keys)
        assert response.status_code == 200, response.text
        return response.json()

    def stream(self, *texts, **keys):
        """The objects of a stream."""
        response = self.post(*texts, stream=True, **keys)
        assert response.status_code == 200, response.text
        return read_events(response.text)


def read_events(text):
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [one if one == "[DONE]" else json.loads(one) for one in events]


def text_of(answer, number=0):
    return answer["choices"][number]["message"]["content"]
