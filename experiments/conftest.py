"""Offline and with one thread, as in tests/conftest.py; the fixtures are those of tests/parts."""

from tests.parts import offline  # noqa: F401  before torch

# isort: split
from tests.parts.agents import agent_folder, chat_agent  # noqa: F401
from tests.parts.bots import bot, new_bot  # noqa: F401
