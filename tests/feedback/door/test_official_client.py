"""The API as the official client uses it, against a server."""

import asyncio
import socket
import threading

import pytest

pytest.importorskip("openai", reason="the API is asked with the official client")

import httpx
import openai

from rlhf_dialog.feedback.commands.serve import http_server
from rlhf_dialog.feedback.door.guard import Guard
from rlhf_dialog.feedback.store.settings import ApiKeys
from tests.feedback.door.conftest import messages
from tests.feedback.door.test_answers import Pace, wait_for_answers
from tests.parts.bots import rows

pytestmark = pytest.mark.slow
HELLO = {"model": "bot", "messages": messages("Hello")}


@pytest.fixture
def url(door):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = http_server(Guard(door.app, ApiKeys()), 1)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        server.should_exit = True
        thread.join()


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=url, api_key="none") as client:
        yield client


def stored(store, answer, number=""):
    return store.find_answer(answer.removeprefix("chatcmpl-") + number)


def test_answers_and_models(client, store):
    assert [model.id for model in client.models.list()] == ["bot"]
    assert client.models.retrieve("bot").owned_by == "rlhf-dialog"
    answer = client.chat.completions.create(**HELLO, n=2, seed=1)
    for number, end in enumerate(("", "-1")):
        assert answer.choices[number].message.content == stored(store, answer.id, end).text
    first = answer.choices[0].message
    later = client.chat.completions.create(
        model="bot", messages=[*HELLO["messages"], first.model_dump(exclude_none=True), *messages("And ?")]
    )
    assert stored(store, later.id).dialogue == stored(store, answer.id).dialogue
    assert later.usage.total_tokens == later.usage.prompt_tokens + later.usage.completion_tokens > 0


def test_streams_of_both_clients(url, client, store):
    *chunks, last = client.chat.completions.create(**HELLO, stream=True, stream_options={"include_usage": True})
    turn = stored(store, last.id)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == turn.text
    assert last.usage.completion_tokens == len(turn.token_ids)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")

    async def ask():
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as people:
            asked = [people.chat.completions.create(**HELLO, stream=True) for _ in range(2)]
            texts = {}
            for stream in await asyncio.gather(*asked):
                async for chunk in stream:
                    texts[chunk.id] = texts.get(chunk.id, "") + (chunk.choices[0].delta.content or "")
            return texts

    texts = asyncio.run(ask())
    assert len(texts) == 2
    assert all(stored(store, name).text == text for name, text in texts.items())


def test_errors(client, store, monkeypatch):
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError, match="n: found 3"):
        create(**HELLO, n=3)
    with pytest.raises(openai.NotFoundError) as unknown:
        create(**HELLO | {"model": "other"})
    assert unknown.value.code == "model_not_found"

    def full(*_, **__):
        raise openai_user_error()

    monkeypatch.setattr(store, "begin", full)
    with pytest.raises(openai.APIError, match="could not be stored"):
        list(create(**HELLO, stream=True))
    with pytest.raises(openai.InternalServerError) as failed:
        client.with_options(max_retries=0).chat.completions.create(**HELLO)
    assert failed.value.status_code == 503


def openai_user_error():
    from rlhf_dialog.errors import UserError

    return UserError("the disk is full")


class Losing(httpx.HTTPTransport):
    """A network that loses the first answer on its way."""

    lost = False

    def handle_request(self, request):
        response = super().handle_request(request)
        if not self.lost:
            self.lost = True
            response.read()
            raise httpx.ReadError("the connection was reset")
        return response


def test_an_answer_that_was_lost_on_its_way_is_not_doubled(url, bot, store):
    network = Losing()
    with openai.OpenAI(base_url=url, api_key="none", http_client=httpx.Client(transport=network)) as client:
        answer = client.chat.completions.create(**HELLO)
    assert network.lost
    assert stored(store, answer.id).text == answer.choices[0].message.content
    assert rows(bot, "SELECT count(*) FROM turns") == [(2,)]


def test_a_stream_that_is_left_is_stored_as_far_as_it_was_sent(client, bot, door, monkeypatch):
    pace = Pace(monkeypatch, 6)
    with client.chat.completions.create(**HELLO, seed=3, stream=True) as stream:
        text = ""
        while len(text) < 2:
            text += next(stream).choices[0].delta.content or ""
        assert pace.waits.wait(60)
    growing = list(door.answers._running)
    while growing and not growing[0].is_left:
        pass
    pace.go.release()
    wait_for_answers(door)
    ((said,),) = rows(bot, "SELECT text FROM turns JOIN stopped ON turn = id")
    assert said.startswith(text)
