"""Fixtures of tests/parts for feedback."""

from tests.parts.agents import agent_folder, chat_agent  # noqa: F401
from tests.parts.bots import bot, new_bot  # noqa: F401
