"""Who answers in a chat: a bot, or an agent. What is seen of it in the terminal is in test_chat.py."""

import json
import os

import pytest

from rlhf_dialog.commands.chat import ChatOptions
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.commands.chat_bot import Partner, bots_in
from rlhf_dialog.models.network import AGENT_FILE


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
        talk = one.begin()
        *_, answer = talk.say("Hello")
        assert talk.last.text == answer
        talk.end()
    assert os.listdir(tmp_path) == []


def test_the_person_of_a_bot_is_that_of_the_terminal(bot, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with partner(bot.folder) as one:
        assert one.introduction()[0] == f"Agent: {bot.folder}, version 0001"
        assert not (tmp_path / "state").exists()
        list(one.begin().say("Hello"))
        kept = (tmp_path / "state/rlhf-dialog/person").read_text().strip()
        assert [dialogue.person for dialogue in one.store.dialogues()] == [one.store.hash_person(kept)]


@pytest.mark.parametrize("option", [{"tokenizer": "x"}, {"trust_remote_code": True}])
def test_a_bot_takes_no_tokenizer_and_no_code(bot, option):
    with pytest.raises(UserError, match="a bot has its own tokenizer and runs no code"):
        partner(bot.folder, **option)


def test_an_agent_says_whom_it_plays(agent_folder, bot):
    settings = json.loads((agent_folder / AGENT_FILE).read_text())
    for folder in (agent_folder, bot.agent_folder("0001")):
        (folder / AGENT_FILE).write_text(json.dumps(settings | {"introduction": "A waiter. Try: Tea, please."}))
    with partner(agent_folder) as one:
        assert one.introduction() == [f"Agent: {agent_folder}", "A waiter. Try: Tea, please."]
    with partner(bot.folder) as one:
        assert one.introduction()[:2] == [f"Agent: {bot.folder}, version 0001", "A waiter. Try: Tea, please."]
