"""What Open WebUI sends (version 0.12.4, its forwarding of user info on, an invented person): two turns of one chat."""

from tests.feedback.door.conftest import read_events
from tests.parts.bots import rows

PERSON = {
    "X-OpenWebUI-Auth-Type": "jwt",
    "X-OpenWebUI-User-Name": "Zoe",
    "X-OpenWebUI-User-Id": "0b1e6a52-4c0f-4f7e-9d61-0d5a3f8a7c11",
    "X-OpenWebUI-User-Email": "zoe@example.org",
    "X-OpenWebUI-User-Role": "user",
}
CHAT = {
    "Content-Type": "application/json",
    "X-OpenWebUI-Chat-Id": "5d7c2f1a-90ab-4a53-8a86-4b2b6f0c9d20",
    "Authorization": "Bearer none",
    "User-Agent": "Python/3.11 aiohttp/3.14.5",
}
CLOCK = {
    "name": "get_current_timestamp",
    "description": "The time.",
    "parameters": {"properties": {}, "type": "object"},
}
TOOLS = [{"type": "function", "function": CLOCK}]


def test_two_turns_of_a_chat(ask, bot, store):
    def post(*texts):
        response = ask.post(*texts, stream=True, tools=TOOLS, headers=PERSON | CHAT)
        assert (response.status_code, response.headers["X-Ignored-Parameters"]) == (200, "tools")
        *chunks, done = read_events(response.text)
        assert (done, chunks[-1]["choices"][0]["finish_reason"] is None) == ("[DONE]", False)
        return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)

    listed = ask.client.get("/v1/models", headers=PERSON)
    assert [model["id"] for model in listed.json()["data"]] == ["bot"]
    first = post("Hello, is there a garden?")
    second = post("Hello, is there a garden?", first, "And a pond?")
    assert rows(bot, "SELECT position, text FROM turns") == [
        (0, "Hello, is there a garden?"),
        (1, first),
        (2, "And a pond?"),
        (3, second),
    ]
    assert rows(bot, "SELECT count(*) FROM dialogues") == [(1,)]
    chat = store.hash_outside(CHAT["X-OpenWebUI-Chat-Id"])
    assert rows(bot, "SELECT hash FROM chats") == [(chat,)]
    assert rows(bot, "SELECT count(*) FROM users") == [(1,)]
    kept = bot.store_path.read_bytes() + bot.store_path.with_name("feedback.sqlite-wal").read_bytes()
    for secret in (*PERSON.values(), CHAT["X-OpenWebUI-Chat-Id"]):
        if secret not in ("jwt", "user", "Zoe"):
            assert secret.encode() not in kept
