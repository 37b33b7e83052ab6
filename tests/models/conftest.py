"""Fixtures of tests/parts for models."""

from agents import agent_folder, chat_agent  # noqa: F401
from hub_answers import forget, online  # noqa: F401
from hub_server import hub_server  # noqa: F401
from own_networks import own_networks  # noqa: F401
from poisoned import folder, went_off  # noqa: F401
