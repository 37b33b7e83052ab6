"""An agent whose model is code in its folder: it trains, chats and is evaluated only where the user allows that code."""

import json

import pytest

from rlhf_dialog import main
from rlhf_dialog.commands import chat, evaluate
from tests.parts import agents, tiny
from tests.parts.poisoned import edit

pytestmark = pytest.mark.slow
CODE = """
from transformers import GPT2Config, GPT2LMHeadModel


class OwnConfig(GPT2Config):
    model_type = "own_gpt2"


class OwnLM(GPT2LMHeadModel):
    config_class = OwnConfig
"""
ANNOUNCED = "code from these sources may run with all your permissions: "


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A run with a model of its own code; its folder `own` and its configuration."""
    monkeypatch.chdir(tmp_path)
    agents.save(tmp_path / "own")
    auto = {"AutoConfig": "own_model.OwnConfig", "AutoModelForCausalLM": "own_model.OwnLM"}
    edit(tmp_path / "own" / "config.json", model_type="own_gpt2", auto_map=auto, architectures=["OwnLM"])
    (tmp_path / "own" / "own_model.py").write_text(CODE, encoding="utf-8")
    tiny.write_data(tmp_path / "data")
    settings = {
        **{"model_path": "own", "env": {"args": {"data_path": "data"}}, "reward_class": {"id": "LengthMatch"}},
        **{"rollout_batch_size": 4, "num_mini_batch": 2, "ppo_epoch": 1, "max_iterations": 1, "device": "cpu"},
        **{"max_new_tokens": 5, "max_prompt_length": 60, "trust_remote_code": True, "experiment_name": "own"},
    }
    (tmp_path / "own.yaml").write_text(json.dumps(settings), encoding="utf-8")
    return tmp_path


def test_it_is_loaded_only_where_the_user_allows_it(own, monkeypatch, capsys):
    assert main(["--config", "own.yaml", "--smoke"]) == 0
    assert main(["--config", "own.yaml"]) == 0
    agent = "run_results/own/agent"
    assert "own_model.OwnLM" in (own / agent / "config.json").read_text(encoding="utf-8")
    monkeypatch.setattr("builtins.input", lambda _: "quit")
    asked = {
        chat: ["--agent", agent],
        evaluate: ["--agent", agent, "--baseline", "own", "--output", "e.json", "--max_prompts", "4"],
    }
    for command, argv in asked.items():
        capsys.readouterr()
        assert command.main(argv) == 2
        assert "allow it with --trust_remote_code" in capsys.readouterr().err
        assert command.main([*argv, "--trust_remote_code"]) == 0
        error = capsys.readouterr().err
        folders = [agent, "own"] if command is evaluate else [agent]
        assert [line.split(ANNOUNCED)[1] for line in error.splitlines() if ANNOUNCED in line] == [
            f"--agent '{folder}'" for folder in folders
        ]
