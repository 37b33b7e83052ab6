"""A person's dialogue with a tiny bot."""

import pytest

from rlhf_dialog.feedback.page.batched_generation import Answering
from rlhf_dialog.feedback.page.chat_session import ChatSession


@pytest.fixture
def answering(bot):
    with Answering(bot, seed=0) as answering:
        yield answering


@pytest.fixture
def store(bot):
    store = bot.store()
    yield store
    store.close()


@pytest.fixture
def talk(store, answering):
    return ChatSession(store, answering, "somebody", "terminal")
