"""A chat in the terminal: who answers, the words that begin with a slash, and how a growing answer is shown."""

import json
import os

import pytest

from rlhf_dialog.commands.chat import ChatOptions, converse
from rlhf_dialog.commands.chat_screen import Screen
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.commands.chat import WORDS, Partner, bots_in
from rlhf_dialog.feedback.sessions.batched_generation import Answering
from rlhf_dialog.feedback.sessions.chat_session import ChatSession
from rlhf_dialog.models.network import AGENT_FILE
from tests.parts.bots import new_version, rows

RATINGS = "SELECT kind, value, text FROM feedback"


@pytest.fixture
def chat(bot):
    """Type lines to the bot; returns what is written. `PROMOTE` promotes another version before the next line."""
    with Answering(bot, seed=0) as answering:
        store = bot.store()

        def typed(*lines: str) -> list[str]:
            left, written = [*lines, "quit"], []
            begin = lambda: ChatSession(store, answering, "somebody", "terminal")  # noqa: E731

            def read(prompt):
                if left[0] == "PROMOTE":
                    new_version(bot)
                    left.pop(0)
                return left.pop(0)

            converse(begin, read, Screen(written.append, forget=lambda: written.append("lines forgotten")))
            return written[1:]

        yield typed
        store.close()


def test_a_word_is_feedback_on_disk(bot, chat):
    lines = ["/good short and kind", "/BAD  too long ", "/good\tshort", "/score 4", "/edit Good <EOU> morning ."]
    written = chat("Hello", *lines)
    thumbs = [("thumb", 1.0, "short and kind"), ("thumb", -1.0, "too long"), ("thumb", 1.0, "short")]
    assert rows(bot, RATINGS) == [*thumbs, ("score", 4.0, None), ("edit", None, "Good morning .")]
    assert [line.startswith("(stored: ") for line in written[1:]] == [True] * len(lines)


def test_again_and_choose(bot, chat):
    written = chat("Hello", "/again", "/choose 1", "And ?")
    assert written[1].startswith("> Agent, answer 2: ")
    assert "/choose 1 to /choose 2" in written[2]
    first, second = (number for (number,) in rows(bot, "SELECT id FROM turns WHERE position = 1 ORDER BY id"))
    assert rows(bot, "SELECT kind, turn, other FROM feedback") == [("choice", first, second)]


REFUSED = {
    "/score": "/score takes a number from 1 to 5",
    "/score 6": "not 6",
    "/score 4.5": "/score takes a number",
    "/score " + "9" * 5000: "/score takes a number",
    "/score ²": "/score takes a number",
    "/choose": "/choose takes the number",
    "/choose 2": "only one answer",
    "/edit": "/edit takes the text",
    "/forget": "/forget me removes all",
    "/forget me": "/forget me yes does it",
    "/goood": "did you mean '/good'?",
    "/": "/help lists them",
}


def test_a_word_that_cannot_be_done_says_why_and_the_chat_goes_on(bot, chat):
    written = chat("Hello", *REFUSED, "And ?")
    for line, words in zip(written[1:-1], REFUSED.values(), strict=True):
        assert words in line
    assert written[-1].startswith("> Agent: ")
    assert rows(bot) == []


def test_help_and_why(chat):
    text, _, why = chat("/help", "Hello", "/why")
    assert all(f"/{word}" in text for word in WORDS)
    assert why.startswith("(Version 0001 answered")


def test_forget_me(bot, chat):
    """The lines that the terminal keeps, too."""
    written = chat("Hello", "/good", "/Forget  me YES", "/good")
    assert "4 rows" in written[2]
    assert written[3] == "lines forgotten"
    assert "no answer yet" in written[4]
    assert rows(bot, "SELECT * FROM dialogues") == rows(bot) == []


def test_a_reset_says_that_another_version_answers(bot, chat):
    assert "(version 0002 answers now)" in chat("Hello", "PROMOTE", "And ?", "reset", "Hello")
    assert [v for (v,) in rows(bot, "SELECT version FROM turns WHERE speaker = 'agent'")] == ["0001", "0001", "0002"]


# --- who answers ---


def partner(folder, **options):
    return Partner(str(folder), ChatOptions(seed=0, **options))


def test_bots_are_found_by_their_champion(bot, tmp_path):
    (tmp_path / "runs/of_a_model/agent").mkdir(parents=True)
    (tmp_path / "runs/no_bot").mkdir()
    (tmp_path / "runs/no_bot/champion").touch()
    (tmp_path / "runs/bot").symlink_to(bot.folder)
    assert bots_in([tmp_path / "runs", tmp_path / "nowhere"]) == {tmp_path / "runs/bot": tmp_path / "runs/bot/champion"}


def test_an_agent_stores_nothing_and_asks_for_no_id(agent_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with partner(agent_folder) as one:
        assert one.introduction() == [f"Agent: {agent_folder}"]
        assert list(one.begin().say("Hello"))
    assert os.listdir(tmp_path) == []


def test_the_person_of_a_bot_is_that_of_the_terminal(bot, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with partner(bot.folder, temperature=0.5) as one:
        assert one.introduction()[0] == f"Agent: {bot.folder}, version 0001"
        assert not (tmp_path / "state").exists()
        talk = one.begin()
        list(talk.say("Hello"))
        assert talk.last.sampling["temperature"] == 0.5
        kept = (tmp_path / "state/rlhf-dialog/person").read_text().strip()
        assert [dialogue.person for dialogue in one.store.dialogues()] == [one.store.hash_person(kept)]
    for option in ({"tokenizer": "x"}, {"trust_remote_code": True}):
        with pytest.raises(UserError, match="leave --tokenizer and --trust_remote_code out"):
            partner(bot.folder, **option)


def test_a_system_prompt_of_the_chat_stands_before_what_is_said(agent_folder, bot):
    with partner(agent_folder, system_prompt="Be kind .") as one:
        encoder = one.answering._served.agent(one.begin().version).encoder
        read = encoder.tokenizer.decode(encoder.encode_prompt(["Hello"]))
        assert [turn.strip() for turn in read.split("<EOU>")] == ["Be kind .", "Hello", ""]
    with pytest.raises(UserError, match="feedback init --system_prompt"):
        partner(bot.folder, system_prompt="Be kind .")


def test_an_agent_says_whom_it_plays(agent_folder, bot):
    settings = json.loads((agent_folder / AGENT_FILE).read_text())
    said = "A waiter. Try: Tea, please."
    for folder in (agent_folder, bot.agent_folder("0001")):
        (folder / AGENT_FILE).write_text(json.dumps(settings | {"introduction": said}))
    for folder in (agent_folder, bot.folder):
        with partner(folder) as one:
            assert one.introduction()[1] == said
