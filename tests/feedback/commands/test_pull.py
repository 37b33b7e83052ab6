"""`rlhf-dialog feedback pull`: what is asked of Open WebUI, what is stored, and how each failure ends."""

import json
from contextlib import closing

import pytest

from rlhf_dialog.feedback.commands.feedback import main
from rlhf_dialog.feedback.door.callers import Callers
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.people import People
from rlhf_dialog.feedback.store.store import TurnOrigin
from tests.parts.bots import pretended_agent, rows
from tests.parts.open_webui import ASKED, chat, rating
from tests.parts.servers import no_proxy, serving  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_proxy")
EXPORT = "/api/v1/evaluations/feedbacks/all/export"
PULLED = "SELECT kind, turn, value FROM feedback ORDER BY id"


@pytest.fixture
def bot(tmp_path, monkeypatch):
    """A bot with one answer that Open WebUI asked for."""
    monkeypatch.setenv("WEBUI_TOKEN", "sk-secret")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    bot = Bot.create(tmp_path / "bot", str(pretended_agent(tmp_path / "model")))
    store = bot.store()
    dialogue = store.begin("somebody", "api", chat=store.hash_outside("chat"))
    store.add_turn(dialogue, 0, "user", ASKED[0][2])
    origin = TurnOrigin(version="0001")
    store.add_turn(dialogue, 1, "agent", ASKED[1][2], origin, answer="0" * 32, message=store.hash_outside("a1"))
    store.close()
    return bot


def pull(bot, url, *more):
    return main(["pull", "--run", str(bot.folder), "--open_webui", url, "--token_env", "WEBUI_TOKEN", *more])


def answering(*exports):
    """A server whose answers are these exports, the last one again and again."""
    return serving(lambda number, *_: (200, json.dumps(exports[min(number, len(exports)) - 1]).encode()))


def address(server, path=""):
    return server.url.removesuffix("/score") + path


def test_the_export_is_fetched_with_the_token_and_laid_on_the_answers(bot, capsys):
    row = rating("a1", chat=chat(ASKED), details={"rating": 9})
    foreign = rating("x", chat=chat([("user", "y", "Hi"), ("assistant", "x", "Hello .")]), id="other", model="llama")
    down = row | {"data": row["data"] | {"rating": -1}, "updated_at": 1795879999}
    with answering([row, foreign], [row, foreign], [down], []) as server:
        codes = [pull(bot, address(server, path)) for path in ("", "/", "", "/")]
    assert codes == [0, 0, 0, 0]
    assert server.paths == [EXPORT] * 4
    assert server.headers[0]["Authorization"] == "Bearer sk-secret"
    assert rows(bot, PULLED) == [("thumb", 2, 1.0), ("thumb", 2, -1.0), ("withdrawn", 2, None)]
    shown = capsys.readouterr().err
    assert "sk-secret" not in shown
    for words in (
        "1 events added",
        "0 events added",
        "withdrawn: 1",
        "left out: 1 ratings of answers of 'llama'",
        "(1 to 10)",
    ):
        assert words in shown


def test_a_path_before_open_webui_is_kept(bot):
    with answering([]) as server:
        assert pull(bot, address(server, "/chat/")) == 0
    assert server.paths == [f"/chat{EXPORT}"]


@pytest.mark.parametrize(("rater", "count"), [("ann", 1), ("ben", 0)])
def test_a_user_of_a_gateway_rates_what_the_gateway_asked_for_them(bot, capsys, rater, count):
    key = People.load(bot.folder).invite("Open WebUI", "gateway")
    with closing(bot.store()) as store:
        headers = {"Authorization": f"Bearer {key}", "X-OpenWebUI-User-Id": "ann"}
        caller = Callers(People.load(bot.folder), store, None).find(headers)
        dialogue = store.begin(caller.person, "api", user=caller.user)
        store.add_turn(dialogue, 0, "user", "Hi")
        message, origin = store.hash_outside("of ann"), TurnOrigin(version="0001")
        store.add_turn(dialogue, 1, "agent", "Hello .", origin, answer="1" * 32, message=message)
    talk = chat([("user", "hi", "Hi"), ("assistant", "of ann", "Hello .")], user=rater)
    with answering([rating("of ann", chat=talk)]) as server:
        assert pull(bot, address(server)) == 0
    assert len(rows(bot, PULLED)) == count
    assert ("another person" in capsys.readouterr().err) == (count == 0)


REFUSALS = {  # what the server does -> words of the message
    "not an administrator": ((401, b"{}"), ["401", "administrator", "API key"]),
    "a key for other addresses": ((403, b"{}"), ["403", "administrator"]),
    "no such page": ((404, b"{}"), ["404", "address of Open WebUI itself"]),
    "elsewhere": ((307, b""), ["307", "redirects are not followed"]),
    "down": ((503, b""), ["503", "running"]),
    "a web page": ((200, b"<!doctype html>"), ["not Open WebUI's export", "address of Open WebUI itself"]),
    "other JSON": ((200, b'{"detail": "x"}'), ["not Open WebUI's export"]),
    "other rows": ((200, b'[{"id": "x"}]'), ["not Open WebUI's export"]),
    "a part": ((200, json.dumps([rating("a1", chat=chat(ASKED))]).encode()[:-9]), ["not Open WebUI's export"]),
}


@pytest.mark.parametrize(("answer", "words"), REFUSALS.values(), ids=REFUSALS)
def test_what_the_server_refuses_ends_with_what_to_do(bot, capsys, answer, words):
    with serving(lambda *_: answer) as server:
        assert pull(bot, address(server)) == 2
    shown = capsys.readouterr().err
    assert [word for word in words if word not in shown] == []
    assert "sk-secret" not in shown
    assert len(shown.strip().splitlines()) <= 2
    assert rows(bot, PULLED) == []


WRONG = {  # arguments -> words of the message
    "no server": (["--open_webui", "http://127.0.0.1:9"], ["cannot be reached", "running"]),
    "no address": (["--open_webui", "127.0.0.1:8080"], ["--open_webui", "http://"]),
    "a page": (["--open_webui", "http://127.0.0.1:9/?model=x"], ["?"]),
    "a token": (["--token_env", "sk-123abc"], ["--token_env", "name"]),
    "no variable": (["--token_env", "NOT_SET_HERE"], ["NOT_SET_HERE", "not set"]),
}


@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_named(bot, capsys, arguments, words):
    given = ["--open_webui", "http://127.0.0.1:9", "--token_env", "WEBUI_TOKEN"]
    given = [arguments[1] if given[place - 1] == arguments[0] else one for place, one in enumerate(given)]
    assert main(["pull", "--run", str(bot.folder), *given]) == 2
    shown = capsys.readouterr().err
    assert [word for word in words if word not in shown] == []
    assert "sk-123abc" not in shown
