"""The bot folder: whole or absent, one pointer, and a lineage that survives kills."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.bot import Bot, is_bot


@pytest.fixture
def agent(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "rlhf_dialog.json"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def bot(tmp_path, agent):
    return Bot.create(tmp_path / "bot", str(agent))


def night(bot, **record):
    """A new version, as a night adds it."""

    def write(folder):
        (folder / "agent").mkdir()
        (folder / "agent/config.json").write_text("{}")

    return bot.add_version(write, {"method": "kto_dpo", **record})


def statuses(bot):
    return {name: record["status"] for name, record in bot.lineage()["versions"].items()}


def test_a_new_bot(bot, agent):
    assert is_bot(bot.folder)
    assert not is_bot(agent)
    assert sorted(path.name for path in bot.folder.iterdir()) == [
        *("champion", "config.yaml", "feedback.sqlite", "lineage.json", "versions")
    ]
    assert (bot.folder / "champion").read_text() == "0001\n"
    assert {path.name: path.read_text() for path in bot.agent_folder("0001").iterdir()} == {
        name: name for name in ("config.json", "model.safetensors", "rlhf_dialog.json")
    }
    assert (bot.champion(), bot.first(), bot.versions()) == ("0001", "0001", ["0001"])
    assert bot.store().bot == bot.id == Bot(bot.folder).id


def test_promotion_and_rollback(bot):
    assert night(bot) == "0002"
    assert statuses(bot) == {"0001": "champion", "0002": "candidate"}
    bot.promote("0002")
    assert (bot.folder / "champion").read_text() == "0002\n"
    third = night(bot)
    assert bot.lineage()["versions"][third]["parent"] == "0002"
    bot.promote("0003")
    assert statuses(bot) == {"0001": "former champion", "0002": "former champion", "0003": "champion"}
    assert bot.last_good() == ["0003", "0002", "0001"]
    bot.rollback("0001")
    assert statuses(bot) == {"0001": "champion", "0002": "rolled back", "0003": "rolled back"}
    assert night(bot) == "0004"
    assert bot.last_good() == ["0001"]
    bot.rollback("0003")
    assert bot.champion() == "0003"


def test_a_bot_of_another_folder_or_none(tmp_path, bot, agent):
    with pytest.raises(UserError, match="is a bot already"):
        Bot.create(bot.folder, str(agent))
    with pytest.raises(UserError, match="not the folder of a bot"):
        Bot(agent)
    (bot.folder / "lineage.json").write_text(json.dumps({"format_version": 2}))
    with pytest.raises(UserError, match="format version 2"):
        Bot(bot.folder)
