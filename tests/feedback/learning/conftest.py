"""A tiny bot that people talked to for a day."""

import shutil

import pytest

from rlhf_dialog.feedback.store.bot import Bot
from tests.parts.taught_bots import new_bot, talk_to


@pytest.fixture(scope="session")
def bot_of_a_day(tmp_path_factory):
    bot = new_bot(tmp_path_factory.mktemp("day"))
    talk_to(bot, 60)
    return bot


@pytest.fixture
def day(tmp_path, bot_of_a_day):
    """A copy of the test's own."""
    return Bot(shutil.copytree(bot_of_a_day.folder, tmp_path / "bot"))
