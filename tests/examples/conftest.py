"""Fixtures of tests/parts for the examples."""

from agents import agent_folder, chat_agent  # noqa: F401
from bots import bot, new_bot  # noqa: F401
from months import month_inputs  # noqa: F401
