"""Fixtures of tests/parts for runs."""

from tests.parts.fake_wandb import wandb  # noqa: F401
from tests.parts.handlers import handlers  # noqa: F401
from tests.parts.hub_server import hub_server  # noqa: F401
from tests.parts.ppo_runs import refused, rewards, run, world  # noqa: F401
