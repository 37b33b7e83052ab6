"""Fixtures of tests/parts for feedback, and a person's dialogue with a tiny bot."""

import pytest

from rlhf_dialog.feedback.sessions.batched_generation import Answering
from rlhf_dialog.feedback.sessions.chat_session import ChatSession
from tests.parts.agents import agent_folder, chat_agent  # noqa: F401
from tests.parts.bots import bot, new_bot  # noqa: F401


@pytest.fixture
def answering(bot):  # noqa: F811
    with Answering(bot, seed=0) as answering:
        yield answering


@pytest.fixture
def store(bot):  # noqa: F811
    store = bot.store()
    yield store
    store.close()


@pytest.fixture
def talk(store, answering):
    return ChatSession(store, answering, "somebody", "terminal")
