"""Fixtures of tests/parts for runs."""

from fake_wandb import wandb  # noqa: F401
from handlers import handlers  # noqa: F401
from hub_server import hub_server  # noqa: F401
from ppo_runs import refused, rewards, run, world  # noqa: F401
