"""Fixtures of tests/parts for policies of acts."""

from agents import agent_folder, chat_agent  # noqa: F401
from evaluations import agent, classifier, data, prompts, script  # noqa: F401
from fake_wandb import wandb  # noqa: F401
from handlers import handlers  # noqa: F401
