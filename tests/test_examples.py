"""The metric and the policy of examples/, registered as `--register FILE` does it."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_dialog.commands.options import register
from rlhf_dialog.config.registry import VecInfoFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.task_oriented.commands import evaluate_policy, train_policy
from rlhf_dialog.task_oriented.policies.base import Episode, PolicyFactory, PolicySpec
from tests.parts.ppo_runs import rewards as rewards
from tests.parts.ppo_runs import rows
from tests.parts.ppo_runs import run as run
from tests.parts.ppo_runs import world as world
from tests.parts.processes import ROOT

METRIC, POLICY = (str(ROOT / "examples" / f"{name}.py") for name in ("question_share", "average_return"))


@pytest.fixture(autouse=True)
def _registries(monkeypatch):
    for registry in (VecInfoFactory, PolicyFactory):
        monkeypatch.setattr(registry, "classes", dict(registry.classes))


def test_the_metric_is_the_share_of_responses_that_ask():
    register(METRIC)
    dialogues = [Dialogue(["Hi ."], response) for response in ("Why ?", "No .", "Who ? Me ?", "")]
    rollout = SimpleNamespace(dialogues=dialogues, rewards=torch.zeros(4, 3))
    found = VecInfoFactory.create("QuestionShare", {})(rollout)
    assert (found["response/questions"], found["response/words"]) == (0.5, 2.0)  # 2 + 2 + 4 + 0 words


@pytest.mark.slow
def test_a_run_logs_the_metric(run, tmp_path):
    assert run("--register", METRIC, "--vec_info_class.id", "QuestionShare", "--experiment_name", "asked") == 0
    logged = rows(tmp_path / "run_results" / "asked")
    assert len(logged) == 2
    assert all(0 <= row["response/questions"] <= 1 for row in logged)


def average_return(**args):
    register(POLICY)
    return PolicyFactory.create("average_return", {"setting": PolicySpec(num_features=1, num_actions=3), **args})


def test_the_policy_takes_the_allowed_action_with_the_largest_mean_return(tmp_path):
    policy = average_return(first=0.0)
    seen, allowed = np.zeros((2, 1), dtype=np.float32), np.ones((2, 3), dtype=np.bool_)
    turns = np.array([1.0, 5.0], dtype=np.float32)  # action 2 was followed by 6, action 1 by 5
    policy.observe(Episode(seen, allowed, np.array([2, 1]), turns, turns, turns, True, False, seen[0], 0))
    assert policy.update() == {"average_return/best": 3.0}  # (0 + 6) / 2
    policy.save(tmp_path)
    policy = average_return()
    policy.load(tmp_path)
    assert policy.act(seen, allowed, True, [])[0].tolist() == [2, 2]
    assert policy.act(seen, np.array([[True, True, True], [True, True, False]]), True, [])[0].tolist() == [2, 1]


def test_the_policy_explores_among_the_allowed_actions_in_training_alone():
    policy = average_return(epsilon=1.0)
    allowed, streams = np.array([[False, True, True]] * 200), [random.Random(seed) for seed in range(200)]
    drawn = policy.act(np.zeros((200, 1)), allowed, False, streams)[0].tolist()
    assert set(drawn) == {1, 2}
    assert abs(drawn.count(2) - 100) < 4 * 200**0.5 / 2  # four standard deviations
    assert set(policy.act(np.zeros((200, 1)), allowed, True, streams)[0].tolist()) == {1}


@pytest.mark.slow
def test_the_policy_trains_from_the_command_line_and_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--config", "restaurant.yaml", "--register", POLICY, "--policy.id", "average_return"]
    assert train_policy.main([*words, "--epoch", "2", "--batchsz", "16", "--eval_dialogues", "2"]) == 0
    agent = tmp_path / "runs" / "restaurant" / "agent"
    _, counts = json.loads((agent / "policy.json").read_text(encoding="utf-8"))
    assert sum(counts) - len(counts) >= 32  # each turn counts once
    assert (
        evaluate_policy.main(["--agent", str(agent), "--dialogues", "3", "--register", POLICY, "--trust_config"]) == 0
    )
    assert "handcrafted" in capsys.readouterr().out
