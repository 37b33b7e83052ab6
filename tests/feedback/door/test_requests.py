"""What a body asks for, and which bodies are refused."""

import json

import pytest

from rlhf_dialog.feedback.door.requests import ApiError, names_of, read_chat_request


def body(*messages, **keys):
    said = [{"role": role, "content": content} for role, content in messages]
    return {"model": "bot", "messages": said or [{"role": "user", "content": "Hello"}], **keys}


def test_messages_become_a_system_message_and_turns():
    asked = read_chat_request(
        body(
            ("developer", [{"type": "text", "text": "Be kind.\r\n"}]),
            ("assistant", "Good evening."),
            ("user", " Is it far?\r\nOr near? "),
            ("assistant", None),
            ("assistant", "Two streets."),
            ("user", "And then"),
            ("user", [{"type": "text", "text": "where"}, {"type": "text", "text": "to?"}]),
        )
    )
    assert asked.system == "Be kind."
    assert asked.turns == ("Good evening.", "Is it far?\nOr near?", "Two streets.", "And then\n\nwhere\nto?")
    assert read_chat_request(body(("system", " "), ("user", "Hi \ud800"))).system is None
    assert read_chat_request(body(("user", "Hi \ud800"))).turns == ("Hi ?",)  # UTF-8 cannot hold half a character


def test_what_is_asked_for():
    plain = read_chat_request(body())
    assert plain.keys.model_dump(exclude_none=True) == body()
    assert (plain.num_choices, plain.stops, plain.includes_usage, plain.ignored) == (1, (), False, [])
    keys = {
        "temperature": 0,
        "top_p": 0.5,
        "max_tokens": 9,
        "max_completion_tokens": 7,
        "n": 2,
        "seed": -3,
        "user": "u",
    }
    asked = read_chat_request(body(**keys, stop="X", stream=True, stream_options={"include_usage": True}))
    assert {key: getattr(asked.keys, key) for key in keys} == keys
    assert (asked.num_choices, asked.stops, asked.keys.stream, asked.includes_usage) == (2, ("X",), True, True)
    assert read_chat_request(body(stop=["a\r\n", "b"])).stops == ("a\n", "b")


def test_the_body_is_known_again_whatever_the_order_of_its_keys():
    one, other = ({"model": "bot", "n": 1}, {"n": 1, "model": "bot"})
    digests = [read_chat_request({**keys, "messages": body()["messages"]}).digest for keys in (one, other)]
    assert digests[0] == digests[1] != read_chat_request(body(n=2)).digest


def test_keys_without_effect_are_named_and_texts_of_strangers_are_not():
    asked = read_chat_request(
        body(tools=[{"type": "function"}], tool_choice="auto", logit_bias={}, response_format=None)
    )
    assert (asked.ignored, names_of(asked.ignored)) == (["tool_choice", "tools"], "tool_choice, tools")
    odd = read_chat_request(body(**{"a\r\nSet-Cookie: x": 1, "top_k": 3, "é": 2}))
    assert names_of(odd.ignored) == "top_k, ..."
    assert len(names_of(read_chat_request(body(**{f"key_{i}": 1 for i in range(999)})).ignored)) < 300


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
REFUSED = [
    (None, "the body", "dictionary"),
    ([], "the body", "dictionary"),
    ({"messages": [{"role": "user", "content": "Hi"}]}, "model", "required"),
    ({"model": "bot"}, "messages", "required"),
    (body() | {"messages": []}, "messages", "at least 1"),
    (body() | {"messages": ["Hi"]}, "messages[0]", "dictionary"),
    (body(("system", "Be kind.")), "messages", "user"),
    (body(("user", "Hi"), ("assistant", "Yes?")), "messages", "user"),
    (body(("user", "  ")), "messages", "empty"),
    (body(("user", "Hi"), ("system", "Be kind."), ("user", "Hi")), "messages[1].role", "first"),
    (body(("system", "a"), ("system", "b"), ("user", "Hi")), "messages[1].role", "first"),
    (body(("user", [IMAGE])), "messages[0].content[0]", "image_url"),
    (body(("user", [{"type": "text", "text": 3}])), "messages[0].content[0]", "text"),
    (body(("tool", "3 degrees"), ("user", "Hi")), "messages[0]", "tool"),
    (body(("robot", "Hi")), "messages[0].role", "robot"),
    (body(([], "Hi")), "messages[0].role", "[]"),
    (body(("user", None)), "messages[0].content", "None"),
    (body(("user", 3)), "messages[0].content", "found 3"),
    (body(temperature=2.1), "temperature", "2.1"),
    (body(temperature=True), "temperature", "number"),
    (body(temperature=float("nan")), "temperature", "finite"),
    (body(top_p=-0.1), "top_p", "-0.1"),
    (body(max_tokens=0), "max_tokens", "equal to 1"),
    (body(max_completion_tokens=2.5), "max_completion_tokens", "integer"),
    (body(n=3), "n", "equal to 2"),
    (body(n=True), "n", "integer"),
    (body(seed=1.5), "seed", "integer"),
    (body(user=7), "user", "found 7"),
    (body(stream="yes"), "stream", "boolean"),
    (body(stream_options=[]), "stream_options", "dictionary"),
    (body(stop=[""]), "stop[0]", "at least 1"),
    (body(stop=list("abcde")), "stop", "at most 4"),
    (body(stop=3), "stop", "list"),
]


@pytest.mark.parametrize(("wrong", "key", "word"), REFUSED)
def test_a_body_that_is_refused(wrong, key, word):
    with pytest.raises(ApiError) as refusal:
        read_chat_request(wrong)
    error = refusal.value
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert error.message.startswith(f"{key}: ")
    assert word in error.message
    assert len(error.message) < 200
    json.dumps(error.body, allow_nan=False)
    assert error.body["error"]["param"] == key


def test_a_message_with_a_call_of_a_tool_is_refused():
    asked = body(("user", "Hi"), ("assistant", None), ("user", "And?"))
    asked["messages"][1]["tool_calls"] = [CALL]
    with pytest.raises(ApiError, match="tool"):
        read_chat_request(asked)
