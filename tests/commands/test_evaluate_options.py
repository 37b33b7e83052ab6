"""Judges and metrics of one's own, relevance models, and the best of several replies."""

import json

import pytest

from rlhf_dialog.commands.evaluate import EvaluateOptions
from rlhf_dialog.commands.evaluate_options import (
    OwnMetric,
    folders_beside,
    judge_folder,
    relevance_folders,
    reward_judges,
)
from rlhf_dialog.config.registry import MetricFactory, RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.scoring import Scorer
from tests.parts.evaluations import evaluated
from tests.parts.relevance_models import save_letters

OWN = """
from rlhf_dialog import BaseReward, RewardFactory
from rlhf_dialog.config.registry import MetricFactory

@RewardFactory.register("Letters")
class Letters(BaseReward):
    name = "letters"
    def __init__(self, times=1):
        self.times = times
    def __call__(self, dialogues):
        return [float(self.times * len(d.response)) for d in dialogues]

@MetricFactory.register("turns")
def turns(dialogues):
    return [len(d.prompt_turns) for d in dialogues]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setattr(RewardFactory, "classes", dict(RewardFactory.classes))
    monkeypatch.setattr(MetricFactory, "classes", {})
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    return str(path)


@pytest.mark.slow
def test_a_reward_and_a_metric_of_ones_own_judge_every_system(script, runs, own, prompts, tmp_path):
    report, replies = tmp_path / "table.md", tmp_path / "replies.jsonl"
    argv = ["--agent", runs[0], "--register", own, "--max_prompts", 6, "--report", report, "--replies", replies]
    result = evaluated(script, tmp_path, *argv, "--judge", "Letters", "--judge", "{id: Letters, args: {times: 3}}")
    lines = [json.loads(line) for line in replies.read_text(encoding="utf-8").splitlines()]
    for name, metrics in {"metrics": result["metrics"], **result["baselines"]}.items():
        letters = sum(len(line["replies"][name]["response"]) for line in lines) / 6
        assert metrics["judge_letters"]["mean"] == pytest.approx(letters)
        assert metrics["judge_letters_2"]["mean"] == pytest.approx(3 * letters)
        assert metrics["turns"]["mean"] == pytest.approx(sum(len(line["prompt"]) for line in lines) / 6)
    assert "| judge_letters | judge_letters_2 | turns |" in report.read_text(encoding="utf-8")
    assert result["settings"]["judge"] is None


@pytest.mark.slow
def test_relevance_models_judge_every_system(script, runs, tmp_path):
    first, second = save_letters(tmp_path / "first"), save_letters(tmp_path / "second", "convolution", seed=1)
    argv = ["--agent", runs[0], "--baseline", runs[1], "--max_prompts", 12]
    result = evaluated(script, tmp_path, *argv, "--relevance_model", first, "--relevance_model", second)
    names = ["relevance_r1", "relevance_r10", "relevance_2_r1", "relevance_2_r10"]
    assert result["settings"]["own_metrics"] == names
    assert result["settings"]["relevance_models"] == {"relevance": first, "relevance_2": second}
    for metrics in (result["before"], result["after"], *result["baselines"].values()):
        assert all(0 <= metrics[name]["mean"] <= 1 for name in names)
        assert metrics["relevance_r1"]["mean"] <= metrics["relevance_r10"]["mean"]
    assert set(names) <= set(result["difference"])


@pytest.mark.slow
def test_the_best_of_several_replies_by_the_reward(script, runs, tmp_path):
    argv = ["--agent", runs[0], "--max_prompts", 8]
    one, three = (evaluated(script, tmp_path, *argv, "--best_of", n) for n in (1, 3))
    first, best = (f"metrics, best of {n} (reads the reference)" for n in (1, 3))
    assert one["sweep"][first]["score"] == one["metrics"]["score"]
    assert set(three["sweep"]) == set(three["sweep_difference"]) == {best}
    assert three["sweep"][best]["score"]["mean"] > three["metrics"]["score"]["mean"]
    assert three["settings"]["best_of"] == 3


@pytest.mark.slow
def test_an_agent_beside_has_a_row_and_is_compared_with_the_agent(script, runs, tmp_path):
    argv = ["--agent", runs[0], "--baseline", runs[1], "--max_prompts", 8]
    found = evaluated(script, tmp_path, *argv, "--beside", f"again={runs[0]}")
    assert found["sweep"]["again"] == found["after"]  # the same agent, prompts and seed
    assert found["sweep_difference"]["again"]["score"] == {"mean": 0.0, "low": 0.0, "high": 0.0}


@pytest.mark.slow
def test_the_mean_of_several_draws_counts(script, runs, tmp_path):
    """Each draw is what an evaluation with the next seed draws."""
    argv = ["--agent", runs[0], "--max_prompts", 8]
    one, other = (evaluated(script, tmp_path, *argv, "--seed", seed)["metrics"] for seed in (0, 1))
    replies = tmp_path / "replies.jsonl"
    both = evaluated(script, tmp_path, *argv, "--draws", 2, "--replies", replies)
    for name in ("mean_words", "distinct_2", "meteor"):
        assert both["metrics"][name]["mean"] == pytest.approx((one[name]["mean"] + other[name]["mean"]) / 2)
    assert both["metrics"]["reference_perplexity"]["mean"] == pytest.approx(one["reference_perplexity"]["mean"])
    assert both["settings"]["draws"] == 2
    first = json.loads(replies.read_text().splitlines()[0])["replies"]
    assert {"metrics", "metrics, draw 2"} <= set(first)


DIALOGUES = [Dialogue(["a"], "why ?"), Dialogue(["a"], "so .")]


def test_a_function_is_asked_for_one_number_each():
    metric = OwnMetric("questions", lambda dialogues: [float("?" in dialogue.response) for dialogue in dialogues])
    assert Scorer(metric).score(DIALOGUES).total == [1.0, 0.0]


def test_the_name_of_a_row_is_given_or_that_of_the_run():
    beside = ("seed 1=runs/x/agent", "runs/y/agent", "models/z")
    names = {"seed 1": "runs/x/agent", "y": "runs/y/agent", "z": "models/z"}
    assert folders_beside(EvaluateOptions(agent="a", output="o", beside=beside)) == names


def test_judges_have_names_of_their_own():
    judges = ("LengthMatch", "folder", "{id: LengthMatch, args: {}}")
    options = EvaluateOptions(agent="a", output="o", judge=judges, relevance_model=("x", "y"))
    assert judge_folder(options) == "folder"
    assert relevance_folders(options) == {"relevance": "x", "relevance_2": "y"}
    assert list(reward_judges(judges, "cpu")) == ["judge_length_match", "judge_length_match_2"]
