"""docs/REWARDS.md: its rewards register themselves, score, and say what the tables say of them."""

import inspect

import pytest
import yaml
from transformers import BertConfig, BertForSequenceClassification

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.preferences import load_pairs
from rlhf_dialog.rewards import build_reward
from rlhf_dialog.rewards.base import models_inside
from rlhf_dialog.rewards.composite import model_paths
from rlhf_dialog.rewards.scoring import begin_scoring, metrics_of, state_of
from tests.parts.processes import ROOT
from tests.parts.tiny import byte_tokenizer


def test_the_rewards_of_the_documentation(monkeypatch, tmp_path):
    """They register themselves, score, and say what the tables say of them."""
    page = (ROOT / "docs" / "REWARDS.md").read_text(encoding="utf-8")
    _, warmth, clipped, budget = (part.split("```")[0] for part in page.split("```python\n")[1:])
    names: dict = {}
    for code in (warmth, clipped, budget):
        exec(code, names)
    tokenizer = byte_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertForSequenceClassification(BertConfig(**sizes, intermediate_size=16)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    part = {"id": "Warmth", "args": {"folder": str(tmp_path)}}
    assert model_paths("CompositeReward", {"parts": [part]}) == {"warmth model": str(tmp_path)}
    warm = build_reward("CompositeReward", {"parts": [part]})
    assert list(models_inside(names["Clipped"](warm))) == ["warmth model"]
    dialogues = [Dialogue(["Hi ."], response="Hello . " * n) for n in (4, 20)]
    assert all(0 < score < 1 for score in warm(dialogues))
    assert names["Clipped"](warm, low=2.0, high=3.0)(dialogues) == [2.0, 2.0]
    words = build_reward("WordBudget", {})
    begin_scoring(words, "validation", 1)
    assert (words(dialogues), metrics_of(words)) == ([0.0, 0.0], {"budget/price": 0.0})
    begin_scoring(words, "rollout", 2)
    words(dialogues)
    price = 0.1 * (24 - 12) / 12  # 8 and 40 words
    assert state_of(words) == {"price": pytest.approx(price)}
    assert words(dialogues) == [pytest.approx(-8 * price), pytest.approx(-40 * price)]


def test_the_pairs_and_arguments_of_the_documentation(tmp_path):
    page = (ROOT / "docs" / "REWARDS.md").read_text(encoding="utf-8")
    (rows,) = (part.split("```")[0] for part in page.split("```jsonl\n")[1:])
    (tmp_path / "pairs.jsonl").write_text(rows, encoding="utf-8")
    pairs = load_pairs(str(tmp_path / "pairs.jsonl"), "train")
    assert [pair.last_turn for pair in pairs] == [
        "Is it far ?",
        "Is the bakery open ?",
        "Any rolls left ?",
        "Is it cold ?",
    ]
    blocks = [yaml.safe_load(part.split("```")[0])["reward_class"] for part in page.split("```yaml\n")[1:]]
    models = [block["args"] for block in blocks if block["id"] == "RewardModel"]
    assert [RewardFactory.problem("RewardModel", args) for args in models] == [None] * 2
    named = set().union(*models)
    assert named == set(inspect.signature(RewardFactory.classes["RewardModel"].__init__).parameters) - {"self"}
