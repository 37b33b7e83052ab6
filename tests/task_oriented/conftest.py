"""Fixtures of tests/parts for policies of acts."""

from tests.parts.agents import agent_folder, chat_agent  # noqa: F401
from tests.parts.evaluations import agent, classifier, data, prompts, script  # noqa: F401
from tests.parts.fake_wandb import wandb  # noqa: F401
from tests.parts.handlers import handlers  # noqa: F401
