"""`turn_separator: auto`: a folder's own settings, else the chat template of its tokenizer, else <EOU>, in every command."""

import json
import logging
from pathlib import Path

import pytest
import yaml

from rlhf_dialog import main
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import TemplateEncoder
from rlhf_dialog.data.prompt_ids import PromptEncoder
from rlhf_dialog.json_files import load_json
from rlhf_dialog.models.chat_agent import AGENT_FILE, AgentSettings, ChatAgent, settle_separator
from rlhf_dialog.models.saved_agent import save_agent
from rlhf_dialog.training.supervised.settings import SFTConfig
from tests.parts import tiny
from tests.parts.tiny import CHATML, chat_tokenizer

TALKS = [("Any bread ?", "Yes ."), ("Is it far ?", "Two miles ."), ("Who is there ?", "Ben .")]


def folder_of(path: Path, template: str | None) -> Path:
    tiny.gpt2(vocab_size=261).save_pretrained(path)
    chat_tokenizer(template).save_pretrained(path)
    return path


def agent_of(path: Path, separator: str) -> Path:
    """An agent whose tokenizer has a chat template of its own."""
    agent = ChatAgent.load(folder_of(path / "start", CHATML))
    settings = AgentSettings(turn_separator=separator, max_prompt_length=100)
    save_agent(path / "agent", agent.policy, chat_tokenizer(CHATML), settings)
    return path / "agent"


def settled(model: Path, **keys) -> str:
    data = {"env": {"args": {"data_path": "unused"}}, "reward_class": {"id": "LengthMatch"}}
    config = Config(model_path=str(model), **data, **keys)
    settle_separator(config)
    return config.turn_separator


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
    agent = agent_of(tmp_path, separator)
    assert settled(agent) == separator
    (agent / AGENT_FILE).unlink()
    assert settled(agent) == separator
    assert ChatAgent.load(agent).settings.turn_separator == separator


def test_the_tokenizer_of_another_folder_counts_where_the_model_has_no_settings(tmp_path):
    plain, chat = folder_of(tmp_path / "plain", None), folder_of(tmp_path / "chat", CHATML)
    keys = {"data_path": "x", "output": "y", "model_path": str(plain), "tokenizer_path": str(chat)}
    without, own = SFTConfig(**keys), SFTConfig(**keys)
    settle_separator(without)
    (plain / AGENT_FILE).write_text('{"format_version": 1, "turn_separator": "|"}')
    settle_separator(own)
    assert (without.turn_separator, own.turn_separator) == ("chat_template", "|")


@pytest.mark.slow
def test_a_resumed_run_keeps_the_separator_of_its_checkpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder_of(tmp_path / "chat", CHATML)
    messages = [[{"role": "user", "content": a}, {"role": "assistant", "content": b}] for a, b in TALKS]
    Path("data").mkdir()
    for split in ("train", "validation"):
        Path(f"data/{split}.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in messages))
    keys = {"env": {"args": {"data_path": "data"}}, "reward_class": {"id": "LengthMatch"}, "model_path": "chat"}
    keys |= {
        "rollout_batch_size": 4,
        "num_mini_batch": 2,
        "ppo_epoch": 1,
        "max_new_tokens": 5,
        "max_prompt_length": 100,
    }
    keys |= {"run_dir": "runs", "experiment_name": "x", "save_interval": 1, "device": "cpu", "pytorch_threads": 1}

    def run(*argv: str, **more) -> int:
        Path("run.yaml").write_text(yaml.safe_dump(keys | more))
        return main(["--config", "run.yaml", *argv])

    assert run("--max_iterations", "1", turn_separator="<EOU>") == 0
    assert run("--max_iterations", "2", "--resume") == 0  # auto would be the template
    assert load_json(Path("runs/x/agent") / AGENT_FILE)["turn_separator"] == "<EOU>"
    assert run("--max_iterations", "3", "--resume", turn_separator="chat_template") == 2
    assert "turn_separator: 'chat_template' here, '<EOU>' in the checkpoint" in capsys.readouterr().err
