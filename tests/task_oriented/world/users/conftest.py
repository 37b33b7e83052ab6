"""Fixtures of tests/parts for the users."""

from agents import agent_folder, chat_agent  # noqa: F401
