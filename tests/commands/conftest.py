"""Fixtures of tests/parts for the commands."""

from agents import agent_folder, chat_agent  # noqa: F401
from benchmark_inputs import registered, small_tokenizer, tokenizer  # noqa: F401
from bots import bot, new_bot  # noqa: F401
from evaluations import agent, classifier, data, prompts, runs, script  # noqa: F401
from hub_server import hub_server  # noqa: F401
from own_networks import own_networks  # noqa: F401
from ppo_runs import refused, rewards, run, world  # noqa: F401
