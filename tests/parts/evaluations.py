"""Runs, agents and a classifier to evaluate: fixtures, and what writes them into folders."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rlhf_dialog.commands import evaluate
from rlhf_dialog.config.loading import dump_yaml
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.models.chat_agent import ChatAgent
from tests.parts import agents, tiny
from tests.parts.classifiers import save_classifier

LENGTH = {"id": "LengthMatch", "weight": 0.5}


@pytest.fixture(scope="module")
def script():
    return evaluate


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(tiny.write_data(tmp_path_factory.mktemp("data"), 12))


@pytest.fixture(scope="module")
def prompts(data):
    return PromptRules().load(data, "validation")


def save_run(folder: Path, data: str, seed: int, **keys) -> Path:
    """A run folder as training leaves it: config.yaml beside agent/. Returns agent/."""
    agents.save(folder / "agent", {"max_new_tokens": 9}, seed=seed)
    reward = {"id": "CompositeReward", "args": {"parts": [{"id": "Meteor", "args": {"meteor_wordnet": "off"}}, LENGTH]}}
    keys = {"model_path": "m", "env": {"args": {"data_path": data}}, "reward_class": reward, **keys}
    (folder / "config.yaml").write_text(dump_yaml(Config.model_validate(keys)), encoding="utf-8")
    return folder / "agent"


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("runs")
    return save_run(root / "trained", data, seed=1), save_run(root / "start", data, seed=2)


@pytest.fixture(scope="module")
def agent(runs):
    return ChatAgent.load(runs[0])


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A random classifier of four acts."""
    tokenizer, sizes = tiny.byte_tokenizer(), {"num_hidden_layers": 1, "max_position_embeddings": 512}
    ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    return save_classifier(tmp_path_factory.mktemp("classifier"), tokenizer, **sizes, **ids)


COUNTS = {"mean_length", "mean_words", "truncated", "copied", "copied_two", "distinct_1", "distinct_2"}
OVERLAP = {"rouge1", "rougeLsum", "sacrebleu", "meteor", "meteor_shuffled", "meteor_margin"}
BASELINES = {
    "constant_reply",
    "long_constant_reply",
    "repeat_last_turn",
    "random_reference",
    "random_train_reply",
    "nearest_train_reply",
    "always_inform",
    "true_replies",
}


def save_plain(folder: Path) -> str:
    """A model folder without settings."""
    return str(agents.save(folder))


def evaluated(script, tmp_path, *argv):
    """The JSON that the command writes."""
    output = tmp_path / "e.json"
    assert script.main(["--output", str(output), *map(str, argv)]) == 0
    return json.loads(output.read_text(encoding="utf-8"))


def check_float32(agents: list[ChatAgent], numbers: Callable[[], np.ndarray]) -> None:
    """`numbers` are those of float32 products, also where autocast and TF32 are on, which are on again afterwards."""
    products = []
    expected = numbers()
    for agent in agents:
        agent.policy.use_amp = True
        for module in (agent.policy.lm, agent.policy.lm.base_model):
            module.register_forward_pre_hook(lambda *_: products.append(torch.get_float32_matmul_precision()))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # as a run on a GPU leaves it
    try:
        np.testing.assert_array_equal(numbers(), expected)
        assert set(products) == {"highest"}
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert agents[0].policy.use_amp
