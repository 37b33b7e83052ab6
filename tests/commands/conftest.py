"""Fixtures of tests/parts for the commands."""

from tests.parts.agents import agent_folder, chat_agent  # noqa: F401
from tests.parts.bots import bot, new_bot  # noqa: F401
from tests.parts.evaluations import agent, classifier, data, prompts, runs, script  # noqa: F401
from tests.parts.hub_server import hub_server  # noqa: F401
from tests.parts.ppo_runs import refused, rewards, run, world  # noqa: F401
