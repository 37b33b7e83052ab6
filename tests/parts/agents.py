"""Agents in folders: the fixtures `agent_folder` and `chat_agent`."""

import json
from pathlib import Path

import pytest

from rlhf_dialog.models.chat_agent import AGENT_FILE, ChatAgent
from tests.parts import tiny


def save(agent_folder: Path, settings: dict | None = None, **config) -> Path:
    tiny.gpt2(**config).save_pretrained(agent_folder)
    tiny.byte_tokenizer().save_pretrained(agent_folder)
    if settings is not None:
        (agent_folder / AGENT_FILE).write_text(json.dumps({"format_version": 1, **settings}), encoding="utf-8")
    return agent_folder


@pytest.fixture(scope="module")
def agent_folder(tmp_path_factory):
    """An agent of 256 positions that answers 12 tokens."""
    return save(
        tmp_path_factory.mktemp("agents") / "agent",
        {"max_new_tokens": 12, "max_prompt_length": 100, "turn_separator": "<EOU>"},
    )


@pytest.fixture(scope="module")
def chat_agent(agent_folder):
    return ChatAgent.load(agent_folder)
