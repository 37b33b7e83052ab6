"""`turn_separator: auto`: a folder's own settings, else the chat template of its tokenizer, else <EOU>, in every command."""

import logging
from pathlib import Path

import pytest

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import TemplateEncoder
from rlhf_dialog.data.prompt_ids import PromptEncoder
from rlhf_dialog.models.chat_agent import AGENT_FILE, AgentSettings, ChatAgent, settle_separator
from rlhf_dialog.models.saved_agent import save_agent
from rlhf_dialog.training.supervised.settings import SFTConfig
from tests.parts import tiny
from tests.parts.tiny import CHATML, chat_tokenizer


def folder_of(path: Path, template: str | None) -> Path:
    tiny.gpt2(vocab_size=261).save_pretrained(path)
    chat_tokenizer(template).save_pretrained(path)
    return path


def settled(model: Path, **keys) -> str:
    data = {"env": {"args": {"data_path": "unused"}}, "reward_class": {"id": "LengthMatch"}}
    return settle_separator(Config(model_path=str(model), **data, **keys)).turn_separator


def test_the_template_of_the_tokenizer_or_none_or_what_is_asked_for(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    chat, plain = folder_of(tmp_path / "chat", CHATML), folder_of(tmp_path / "plain", None)
    assert settled(chat, turn_separator="###") == "###"
    assert not [line for line in caplog.messages if "turn_separator" in line]
    assert (settled(chat), settled(plain)) == ("chat_template", "<EOU>")
    assert [line.split(":")[0] for line in caplog.messages if "auto" in line] == ["turn_separator"] * 2
    assert "plain' has no chat template" in caplog.messages[-1]
    agents = ChatAgent.load(chat), ChatAgent.load(plain)
    assert [type(agent.encoder) for agent in agents] == [TemplateEncoder, PromptEncoder]
    assert agents[1].settings.turn_separator == "<EOU>"


@pytest.mark.parametrize("separator", ["<EOU>", "chat_template", "||"])
def test_the_settings_of_an_agent_come_first_also_those_in_its_template(tmp_path, separator):
    start, agent = ChatAgent.load(folder_of(tmp_path / "start", CHATML)), tmp_path / "agent"
    settings = AgentSettings(turn_separator=separator, max_prompt_length=100)
    save_agent(agent, start.policy, chat_tokenizer(CHATML), settings)
    assert settled(agent) == separator
    (agent / AGENT_FILE).unlink()
    assert settled(agent) == separator
    assert ChatAgent.load(agent).settings.turn_separator == separator


def test_the_tokenizer_of_another_folder_counts_where_the_model_has_no_settings(tmp_path):
    plain, chat = folder_of(tmp_path / "plain", None), folder_of(tmp_path / "chat", CHATML)
    keys = {"data_path": "x", "output": "y", "model_path": str(plain), "tokenizer_path": str(chat)}
    without = settle_separator(SFTConfig(**keys))
    (plain / AGENT_FILE).write_text('{"format_version": 1, "turn_separator": "|"}')
    own = settle_separator(SFTConfig(**keys))
    assert (without.turn_separator, own.turn_separator) == ("chat_template", "|")
