"""Fixtures of tests/parts for the commands."""

from evaluations import agent, classifier, data, prompts, runs, script  # noqa: F401
from ppo_runs import refused, rewards, run, world  # noqa: F401
