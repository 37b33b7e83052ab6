"""A bot in a folder with a tiny model: the fixture `bot`, and `from bots import new_version`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from agents import save

from rlhf_dialog.feedback.bot import Bot


@pytest.fixture
def bot(tmp_path):
    """A bot whose first version answers 8 tokens."""
    return Bot.create(tmp_path / "bot", str(save(tmp_path / "model", {"max_new_tokens": 8, "max_prompt_length": 100})))


def new_version(bot: Bot, change: Callable[[Path], object] = lambda folder: None, seed: int = 1) -> str:
    """Promote a version of other weights, whose agent folder `change` may change further."""

    def write(folder: Path) -> None:
        save(folder / "agent", initializer_range=0.05, seed=seed)
        shutil.copy(bot.agent_folder("0001") / "rlhf_dialog.json", folder / "agent")
        change(folder / "agent")

    version = bot.add_version(write, {"method": "test"})
    bot.promote(version)
    return version
