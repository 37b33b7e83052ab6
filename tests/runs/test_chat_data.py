"""Runs on chat messages: which prompts PPO takes, the row's system message on the whole way, and the day of a template."""

import json
import logging
from datetime import date
from pathlib import Path

import pytest
import yaml

from rlhf_dialog import main
from rlhf_dialog.commands import export
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data import chat_template
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.environments.base import SingleTurn
from rlhf_dialog.json_files import load_json
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.rewards import Meteor, NoReward
from rlhf_dialog.runs.data_source import training_prompts
from rlhf_dialog.training.episodes import EpisodeInProgress
from tests.parts.ppo_runs import rows, settings
from tests.parts.tiny import CHATML, chat_tokenizer, llama

DATED = "{{ 'It is ' + strftime_now('%d %b %Y') + '. ' }}" + CHATML


def row(*parts):
    return {"messages": [{"role": role, "content": text} for role, text in parts]}


@pytest.fixture
def keys(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = llama(vocab_size=261)
    model.save_pretrained(tmp_path / "chat")
    chat_tokenizer(DATED).save_pretrained(tmp_path / "chat")
    system = ("system", "SYSTEM .")
    talks = [
        row(system, ("user", "Any bread ?"), ("assistant", "Yes ."), ("user", "Thanks .")),
        row(("system", "s" * 150), ("user", "a"), ("assistant", "b")),
        row(("user", "Hi"), ("tool", "{}"), ("assistant", "b")),
        row(("user", "Rain ?"), ("user", "Really ?"), ("assistant", "No .")),
    ]
    (tmp_path / "data").mkdir()
    for split in ("train", "validation"):
        (tmp_path / "data" / f"{split}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in talks))
    place = {"model_path": str(tmp_path / "chat"), "env": {"args": {"data_path": str(tmp_path / "data")}}}
    sizes = {"max_prompt_length": 150, "rollout_batch_size": 3, "num_mini_batch": 1, "ppo_epoch": 1}
    return settings(world) | place | sizes | {"turn_separator": "chat_template", "device": "cpu"}


def test_ppo_takes_prompts_that_nobody_has_answered_unless_the_reward_needs_an_answer(keys, caplog):
    caplog.set_level(logging.INFO)
    config = Config(**keys)
    prompts = [["Any bread ?"], ["Any bread ?", "Yes .", "Thanks ."], ["a"], ["Rain ?\n\nReally ?"]]
    assert "reference" in Meteor(meteor_wordnet="off").needs
    taken = [prompt.prompt_turns for prompt in training_prompts(config, Meteor(meteor_wordnet="off"))]
    assert taken == [prompts[0], *prompts[2:]]
    assert "1 prompts have no reply to learn from and are left out: the reward needs reference" in caplog.text
    assert [prompt.prompt_turns for prompt in training_prompts(config, NoReward())] == prompts


@pytest.mark.slow
@pytest.mark.parametrize("second", ["Call me Ann .", "Call me Bob ."])
def test_an_agent_chats_behind_the_system_message_that_all_rows_had(keys, tmp_path, second, capsys):
    talks = [row(("system", x), ("user", "Hi"), ("assistant", "b")) for x in ("Call me Ann .", second)]
    for split in ("train", "validation"):
        (tmp_path / "data" / f"{split}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in talks))
    Path("chat.yaml").write_text(yaml.safe_dump(keys | {"run_dir": "runs", "experiment_name": "x", "save_interval": 1}))
    words = ["--max_iterations", "1", "--eval_interval", "1", "--eval_episodes", "2"]
    assert main(["--config", "chat.yaml", *words]) == 0
    is_same = second == "Call me Ann ."
    assert ("--system_prompt" in capsys.readouterr().err) is not is_same
    assert export.main(["--run", "runs/x", "--output", "exported"]) == 0
    for folder in ("runs/x/agent", "runs/x/best_agent", "exported"):
        agent = ChatAgent.load(folder)
        assert agent.encoder.encode_prompt(["Hi"]) == agent.encoder.encode_prompt(
            ["Hi"], "Call me Ann ." if is_same else None
        )
        text = agent.encoder.tokenizer.decode(agent.encoder.encode_prompt(["Hi"]))
        assert ("Ann" in text, "Bob" in text) == (is_same, False)


@pytest.mark.slow
def test_a_run_on_messages_and_its_day(keys, monkeypatch, tmp_path, caplog):
    class Sunday(date):
        @classmethod
        def today(cls):
            return cls(2026, 7, 5)

    class Monday(date):
        @classmethod
        def today(cls):
            return cls(2026, 7, 6)

    Path("chat.yaml").write_text(yaml.safe_dump(keys | {"run_dir": "runs", "experiment_name": "x", "save_interval": 1}))
    monkeypatch.setattr(chat_template, "date", Sunday)
    assert main(["--config", "chat.yaml", "--max_iterations", "1"]) == 0
    assert "1 of 4 rows have tool messages" in caplog.text
    assert "1 of 3 rows have a system message that leaves fewer than 16 of the 150 tokens" in caplog.text
    monkeypatch.setattr(chat_template, "date", Monday)
    assert main(["--config", "chat.yaml", "--max_iterations", "2", "--resume"]) == 0
    run = tmp_path / "runs/x"
    assert [one["iteration"] for one in rows(run)] == [1, 2]
    assert yaml.safe_load((run / "config.yaml").read_text())["date_string"] == "2026-07-05"
    agent = ChatAgent.load(run / "agent")
    text = agent.encoder.tokenizer.decode(agent.encoder.encode_prompt(["a"]))
    assert text.startswith("It is 05 Jul 2026. <|im_start|>user\na")
    assert "system_prompt" not in load_json(run / "agent/rlhf_dialog.json")
    behind, read = Dialogue(["a"], system="S"), []
    agent.generate = lambda prompts, uniform=None: read.append(prompts.prompt_ids[0].tolist())
    agent.read = lambda responses: []
    agent.reply([behind])
    expected = agent.encoder.encode_prompt(["a"], "S")
    assert read == [expected]
    assert EpisodeInProgress(SingleTurn(behind), behind, agent).prompt == expected
    monkeypatch.setattr(chat_template, "date", Sunday)
    assert main(["--config", "chat.yaml", "--max_iterations", "3", "--resume", "--date_string", "2026-01-01"]) == 2
