"""The shapes of OpenAI's API, and what is on disk when an answer is told."""

import re
from collections import Counter

from rlhf_dialog.feedback.store.examples import read_examples
from rlhf_dialog.feedback.store.people import People
from rlhf_dialog.feedback.store.store import Rating
from tests.feedback.door.conftest import read_events, text_of
from tests.parts.bots import exchange, new_version, rows


def test_an_answer_has_openai_s_shape_and_is_stored(ask, store, bot):
    answer = ask("Hello", seed=3)
    assert re.fullmatch("chatcmpl-[0-9a-f]{32}", answer["id"])
    assert (answer["object"], answer["model"], answer["system_fingerprint"]) == ("chat.completion", "bot", "0001")
    (choice,) = answer["choices"]
    assert (choice["index"], choice["message"]["role"]) == (0, "assistant")
    turn = store.find_answer(answer["id"].removeprefix("chatcmpl-"))
    assert (turn.text, turn.position, turn.version) == (text_of(answer), 1, "0001")
    assert choice["finish_reason"] == ("length" if len(turn.token_ids) == 8 else "stop")
    prompt = len(b"Hello") + len(" ")  # bytes, and the separator, which takes the space before it
    assert answer["usage"]["prompt_tokens"] in (prompt, prompt + 1)
    assert answer["usage"]["completion_tokens"] == len(turn.token_ids)
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + len(turn.token_ids)
    (dialogue,) = store.dialogues()
    assert (dialogue.source, dialogue.person) == ("api", store.hash_person("somebody"))
    assert rows(bot, "SELECT position, speaker, text FROM turns") == [(0, "user", "Hello"), (1, "agent", turn.text)]


def test_a_stream_tells_the_same_answer_in_pieces(ask):
    whole = ask("Hello", seed=3)
    events = ask.stream("Hello", seed=3, stream_options={"include_usage": True})
    assert events[-1] == "[DONE]"
    usage, chunks = events[-2], events[:-2]
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all(chunk["usage"] is None for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == text_of(whole)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [whole["choices"][0]["finish_reason"]]
    assert all("usage" not in chunk for chunk in ask.stream("Hello", seed=3)[:-1])


def test_two_choices_are_stored_also_when_they_are_equal_and_the_dialogue_goes_on_with_the_first(ask, store):
    answer = ask("Hello", n=2, temperature=0)
    assert text_of(answer) == text_of(answer, 1)
    name = answer["id"].removeprefix("chatcmpl-")
    first, second = (store.find_answer(one) for one in (name, f"{name}-1"))
    assert (first.position, second.position, first.dialogue) == (1, 1, second.dialogue)
    answer = ask("Hello", n=2, seed=1)
    assert text_of(answer) != text_of(answer, 1)
    assert answer["usage"]["completion_tokens"] > 8
    later = ask("Hello", text_of(answer), "And ?")
    turn = store.find_answer(later["id"].removeprefix("chatcmpl-"))
    assert turn.dialogue == store.find_answer(answer["id"].removeprefix("chatcmpl-")).dialogue
    events = ask.stream("Hello", n=2, seed=1)
    for number in (0, 1):
        pieces = [one["choices"][0] for one in events[:-1] if one["choices"][0]["index"] == number]
        assert "".join(one["delta"].get("content", "") for one in pieces) == text_of(answer, number)
        assert pieces[-1]["finish_reason"]


def test_sampling_length_and_stop_of_the_request(ask, store):
    short = ask("Hello", max_tokens=3, seed=5)
    assert (short["choices"][0]["finish_reason"], short["usage"]["completion_tokens"]) == ("length", 3)
    turn = store.find_answer(short["id"].removeprefix("chatcmpl-"))
    assert (turn.sampling["max_new_tokens"], turn.sampling["seed"]) == (3, 5)
    whole = text_of(ask("Hello", seed=5))
    stopped = ask("Hello", seed=5, stop=[whole[3]])
    assert (text_of(stopped), stopped["choices"][0]["finish_reason"]) == (
        whole[: whole.index(whole[3])].rstrip(),
        "stop",
    )
    assert text_of(ask("Hello", temperature=0)) == text_of(ask("Hello", temperature=0, seed=9))


def test_the_system_message_is_read_and_stored(ask, store, answering):
    answer = ask("Hello", system=" Be brief .\r\n", seed=3)
    assert text_of(answer) != text_of(ask("Hello", seed=3))
    turn = store.find_answer(answer["id"].removeprefix("chatcmpl-"))
    assert store.system(turn.dialogue) == "Be brief ."
    response = ask.post("Hello", system="x" * 99)
    assert (response.status_code, "100 tokens" in response.text) == (400, True)
    assert "finish_reason" not in ask.post("Hello", system="x" * 99, stream=True).text


def test_models(ask, bot):
    new_version(bot)
    found = ask.client.get("/v1/models").json()
    assert (found["object"], [one["id"] for one in found["data"]]) == ("list", ["bot"])
    assert ask.client.get("/v1/models/bot").json() == found["data"][0]
    assert ask.client.get("/v1/models/bot@0001").status_code == 404
    for model in ("other", "bot@0001", "bot@", "0001", ""):
        response = ask.client.post(
            "/v1/chat/completions", json={"model": model, "messages": [{"role": "user", "content": "Hi"}]}
        )
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_what_has_no_effect_is_named_in_a_header(ask):
    response = ask.post("Hello", tools=[{"type": "function"}], response_format={"type": "json_object"})
    assert response.headers["X-Ignored-Parameters"] == "response_format, tools"
    assert "X-Ignored-Parameters" not in ask.post("Hello").headers


def test_refusals_have_openai_s_shape(ask, bot):
    for response in (
        ask.client.post("/v1/chat/completions", content=b"{"),
        ask.client.post("/v1/chat/completions", content=b'{"model": "bot", "messages": ' + b"[" * 10**5),
        ask.post("Hello", n=3),
        ask.post("<EOU>"),
        ask.client.get("/v1/completions"),
        ask.client.get("/v1/chat/completions"),
        ask.client.get("/docs"),
        ask.client.get("/openapi.json"),
    ):
        assert response.status_code in (400, 404, 405)
        assert {"message", "type", "param", "code"} == response.json()["error"].keys()
    assert rows(bot, "SELECT * FROM dialogues") == []


def test_an_answer_that_cannot_be_stored_ends_with_an_error_and_without_a_reason(ask, bot, store, monkeypatch):
    from rlhf_dialog.errors import UserError

    def full(*_, **__):
        raise UserError("/secret/feedback.sqlite: the disk is full")

    monkeypatch.setattr(store, "add_turn", full)
    response = ask.post("Hello")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "not_stored")
    assert int(response.headers["Retry-After"]) > 0
    text = ask.post("Hello", stream=True).text
    events = read_events(text)
    assert events[-1]["error"]["code"] == "not_stored"
    assert all(one["choices"][0]["finish_reason"] is None for one in events[:-1])
    assert not {"[DONE]"} & {one for one in events if isinstance(one, str)}
    assert "secret" not in text + response.text
    assert rows(bot, "SELECT * FROM dialogues") == []


def test_an_answer_that_fails_is_told_without_what_was_said(ask, answering, monkeypatch, caplog):
    from rlhf_dialog.feedback.sessions import batched_generation

    def failing(*_):
        raise RuntimeError("Hello is private")

    monkeypatch.setattr(batched_generation, "stream", failing)
    response = ask.post("Hello")
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
    assert "private" not in response.text + caplog.text
    assert "RuntimeError" in caplog.text


def test_ratings_by_the_api_and_in_the_terminal_are_one_person_s(ask, bot, store):
    for number in range(30):
        dialogue, (turn,) = exchange(store, "somebody", f"Is it far, {number} ?")
        store.add_feedback(dialogue, "somebody", Rating("thumb", turn, 1))
    for number in range(6):
        answer = ask(f"Hello {number}")
        rating = {"id": answer["id"], "thumb": "up"}
        assert ask.client.post("/v1/feedback", json=rating).json()["added"] == 1
        assert ask.client.post("/v1/feedback", json=rating).json()["added"] == 0
    examples = read_examples(store)
    assert Counter(one.person for one in examples.all) == {store.hash_person("somebody"): 36}
    assert ask.client.delete(f"/v1/feedback/{answer['id']}").json()["deleted"] is True
    assert len(read_examples(store)) == 35
    assert ask.client.post("/v1/feedback", json={"id": "chatcmpl-" + "0" * 32, "thumb": "up"}).status_code == 404
    assert ask.client.request("DELETE", "/v1/people/me", json={"confirm": "forget"}).status_code == 401


def test_the_holder_of_a_key_is_forgotten(ask, bot, store):
    key = People.load(bot.folder).invite("Ann")
    headers = {"Authorization": f"Bearer {key}"}
    assert ask.post("Hello").status_code == 401
    answer = ask("Hello", headers=headers)
    assert ask.client.request("DELETE", "/v1/people/me", json={}, headers=headers).status_code == 400
    done = ask.client.request("DELETE", "/v1/people/me", json={"confirm": "forget"}, headers=headers)
    assert (done.status_code, done.json()["deleted"]) == (200, True)
    assert (store.dialogues(), store.find_answer(answer["id"].removeprefix("chatcmpl-"))) == ([], None)


def test_teachers_ask_versions_by_name(ask, bot):
    new_version(bot)
    key = People.load(bot.folder).invite("Ann", "teacher")
    headers = {"Authorization": f"Bearer {key}"}
    names = lambda: [one["id"] for one in ask.client.get("/v1/models", headers=headers).json()["data"]]  # noqa: E731
    assert names() == ["bot", "bot@0001", "bot@0002"]
    assert ask("Hello", model="bot@0001", headers=headers)["system_fingerprint"] == "0001"
    with bot._changing() as tree:
        tree["versions"]["0001"]["status"] = "refused"
    assert names() == ["bot", "bot@0002"]
    assert ask.post("Hello", model="bot@0001", headers=headers).status_code == 404
