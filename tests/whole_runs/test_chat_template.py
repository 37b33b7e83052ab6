"""The whole way with a chat template: fine-tuning, PPO, evaluation and chat."""

import json
from pathlib import Path

import pytest

from rlhf_dialog import ChatAgent, main
from rlhf_dialog.commands.supervised import train_sft
from tests.parts import tiny
from tests.parts.chatml import END, OPEN, said
from tests.parts.processes import load_script
from tests.parts.tiny import CHATML_USER_FIRST, chat_tokenizer

pytestmark = pytest.mark.slow


def save(folder: Path, template: str | None) -> Path:
    tiny.gpt2(vocab_size=261).save_pretrained(folder)
    chat_tokenizer(template).save_pretrained(folder)
    return folder


def fine_tune(model: Path | None, root: Path, output: str) -> int:
    argv = ["--data_path", str(root / "data"), "--output", str(root / output), "--turn_separator", "chat_template"]
    argv += ["--model_path", str(model)] if model else []
    few = ["--max_steps", "3", "--batch_size", "4", "--evals", "1", "--device", "cpu", "--pytorch_threads", "1"]
    return train_sft([*argv, *few])


def train(model: Path, root: Path) -> int:
    keys = {
        "model_path": str(model),
        "env": {"args": {"data_path": str(root / "data")}},
        "reward_class": {"id": "LengthMatch"},
        **{"turn_separator": "chat_template", "max_iterations": 2, "rollout_batch_size": 6, "num_mini_batch": 2},
        **{"max_new_tokens": 6, "device": "cpu", "run_dir": str(root / "runs"), "experiment_name": "chatty"},
        **{"pytorch_threads": 1, "lr": 1e-3, "critic_lr": 1e-3},
    }
    (root / "run.yaml").write_text(json.dumps(keys), encoding="utf-8")
    return main(["--config", str(root / "run.yaml")])


def evaluate(agent: Path, root: Path) -> int:
    output = str(root / "evaluation.json")
    argv = ["--agent", str(agent), "--config", str(root / "run.yaml"), "--output", output, "--max_prompts", "4"]
    return load_script("scripts/evaluate.py").main(argv)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder where a model that wants the user first went through fine-tuning and PPO."""
    root = tmp_path_factory.mktemp("template")
    tiny.write_data(root / "data", 6)
    assert fine_tune(save(root / "model", CHATML_USER_FIRST), root, "sft") == 0
    assert train(root / "sft", root) == 0
    return root


def test_ppo_trains_and_the_agent_keeps_template_and_setting_and_answers(world):
    rows = [json.loads(line) for line in (world / "runs/chatty/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2]
    assert rows[0]["objective/kl"] == pytest.approx(0, abs=1e-5)
    assert rows[1]["objective/kl"] != 0
    agent = ChatAgent.load(world / "runs/chatty/agent")
    assert agent.settings.turn_separator == "chat_template"
    assert agent.encoder.encode_prompt(["a", "b"]) == said("user", "b") + OPEN
    assert END in agent.stop.end_ids
    reply = agent.chat("Hello", history=["Hi", "Who is there ?"])
    assert isinstance(reply, str)
    assert "<|" not in reply


def test_a_reply_is_counted_with_its_end_token(world):
    assert evaluate(world / "runs/chatty/agent", world) == 0
    result = json.loads((world / "evaluation.json").read_text(encoding="utf-8"))
    constant = result["baselines"]["constant_reply"]
    assert constant["mean_length"]["mean"] == len("Yes , I am .") + 1
