"""A bot in a folder with a tiny model: the fixture `bot`."""

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.store import Store, TurnOrigin
from tests.parts.agents import save


@pytest.fixture(scope="session")
def new_bot(tmp_path_factory):
    """A bot whose first version answers 8 tokens; tests copy it."""
    root = tmp_path_factory.mktemp("bots")
    return Bot.create(root / "bot", str(save(root / "model", {"max_new_tokens": 8, "max_prompt_length": 100}))).folder


@pytest.fixture
def bot(new_bot, tmp_path):
    """A bot of the test's own."""
    return Bot(shutil.copytree(new_bot, tmp_path / "bot"))


def new_version(bot: Bot, change: Callable[[Path], object] = lambda folder: None) -> str:
    """Promote a version of other weights, whose agent folder `change` may change further."""

    def write(folder: Path) -> None:
        save(folder / "agent", initializer_range=0.05, seed=1)
        shutil.copy(bot.agent_folder("0001") / "rlhf_dialog.json", folder / "agent")
        change(folder / "agent")

    version = bot.add_version(write, {"method": "test"})
    bot.promote(version)
    return version


def exchange(
    store: Store,
    person: str = "p",
    asked: str = "Is it far ?",
    answers: Sequence[str] = ("Two streets .",),
    **origin: Any,
) -> tuple[str, list[int]]:
    """A dialogue of one question with its answers: its id, and those of the answers."""
    dialogue = store.begin(person, "terminal")
    store.add_turn(dialogue, 0, "user", asked)
    return dialogue, [store.add_turn(dialogue, 1, "agent", text, TurnOrigin(**origin)) for text in answers]


def pretended_agent(folder: Path, *more: str) -> Path:
    """Files that no test loads, each with its name in it."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors", *more):
        (folder / name).write_text(name)
    return folder


FEEDBACK = "SELECT kind, turn, value, text, other FROM feedback ORDER BY id"


def rows(bot: Bot, statement: str = FEEDBACK) -> list[tuple[Any, ...]]:
    """What plain sqlite3 reads from the store."""
    with closing(sqlite3.connect(bot.store_path)) as connection:
        return connection.execute(statement).fetchall()
