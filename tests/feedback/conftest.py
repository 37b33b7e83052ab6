"""Fixtures of tests/parts for feedback."""

from agents import agent_folder, chat_agent  # noqa: F401
from bots import bot, new_bot  # noqa: F401
