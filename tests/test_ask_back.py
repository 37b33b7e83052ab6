"""The rewards of examples/ that the README trains a chat model with, and their YAML."""

import runpy

import pytest
import yaml

from rlhf_dialog.config.loading import load_config
from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from tests.parts.processes import ROOT


@pytest.fixture
def example(monkeypatch):
    """A function that runs a file of examples/ and returns the reward that it registers."""
    monkeypatch.setattr(RewardFactory, "classes", dict(RewardFactory.classes))

    def registered(file, name, **args):
        runpy.run_path(str(ROOT / "examples" / file))
        return RewardFactory.create(name, args)

    return registered


def of(reward, reply):
    return reward([Dialogue(["Hi ."], response=reply)])[0]


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("I love the sea. Do you swim?", 1.0),
        ("Oh! That was a long day for you. How is your knee now? ", 1.0),
        ("Do you swim?", 0.3),
        ("I love the sea.", 0.0),
        ("Do you swim? I love the sea.", 0.0),
        ("Really? Do you swim?", 0.0),
        ("I love the sea. Do you swim? And", 0.0),
        ("I love the sea. Do you swim", 0.0),
        ("", 0.0),
        ("word " * 17 + "word. Right now?", 1.0),
        ("word " * 18 + "word. Right now?", 0.0),
    ],
)
def test_a_statement_and_then_one_question_have_full_marks(example, reply, score):
    assert of(example("ask_back.py", "AskBack"), reply) == score


def test_the_number_of_words_and_the_pattern_can_be_chosen(example):
    reward = example("ask_back.py", "AskBack", words=6)
    assert [of(reward, "I see. Do you swim?"), of(reward, "I love the sea. Do you swim?")] == [1.0, 0.0]
    reward = example("matches.py", "Matches", pattern=r"(\S+\s+){0,2}\S+[.!?]")  # of the whole reply
    assert [of(reward, reply) for reply in ("I do.", " So do I! ", "I do", "And so do I.")] == [1.0, 1.0, 0.0, 0.0]


def test_its_yaml_names_the_reward_and_leaves_the_encoder_to_judge(example):
    config = load_config(ROOT / "configs" / "ask_back.yaml", {})
    parts = {part["id"]: part.get("args") or {} for part in config.reward_class.args["parts"]}
    assert set(parts) == {"AskBack", "RelevanceReward"}
    assert example("ask_back.py", "AskBack", **parts["AskBack"]).words == 20
    relevance = yaml.safe_load((ROOT / "configs" / "relevance_chitchat.yaml").read_text())
    assert parts["RelevanceReward"]["model"] == relevance["output"]
