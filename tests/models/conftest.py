"""Fixtures of tests/parts for models."""

from tests.parts.agents import agent_folder, chat_agent  # noqa: F401
from tests.parts.hub_answers import forget, online  # noqa: F401
from tests.parts.hub_server import hub_server  # noqa: F401
from tests.parts.own_networks import own_networks  # noqa: F401
from tests.parts.poisoned import folder, went_off  # noqa: F401
