"""The metric, the policy, the estimator and the loss of examples/, registered as `--register FILE` does it."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from rlhf_dialog import UserError, main
from rlhf_dialog.commands.options import register
from rlhf_dialog.config.registry import AdvantageFactory, LossFactory, VecInfoFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.task_oriented.commands import evaluate_policy, train_policy
from rlhf_dialog.task_oriented.policies.base import Episode, PolicyFactory, PolicySpec
from rlhf_dialog.training.ppo import Credit
from tests.parts.ppo_runs import rewards as rewards
from tests.parts.ppo_runs import rows
from tests.parts.ppo_runs import run as run
from tests.parts.ppo_runs import world as world
from tests.parts.processes import ROOT
from tests.parts.trainers import make_trainer

METRIC, POLICY, RANKS, SOFT_CLIP = (
    str(ROOT / "examples" / f"{name}.py")
    for name in ("question_share", "average_return", "rank_advantages", "soft_clip")
)


@pytest.fixture(autouse=True)
def _registries(monkeypatch):
    for registry in (VecInfoFactory, PolicyFactory):
        monkeypatch.setattr(registry, "classes", dict(registry.classes))
    for registry, name in ((AdvantageFactory, "ranks"), (LossFactory, "soft_clip")):
        for table in (registry.classes, registry.formulas):
            monkeypatch.setitem(table, name, None)  # which goes when the test ends
            del table[name]


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


def test_the_estimator_ranks_the_responses_of_a_prompt():
    """Sums of rewards and penalties 1, 3, 3 and, of another prompt, 0, -1, 5; what stands behind the mask does not count."""
    register(RANKS)
    mask = torch.tensor([[True, True], [True, False]] * 3)
    rewards = torch.tensor([[0.5, 1.0], [3.0, 9.0], [3.0, 0.0], [0.0, torch.nan], [-1.0, 0.0], [5.0, 7.0]])
    penalties = torch.tensor([[-0.5, 0.0]] + [[0.0, 0.0]] * 5)
    credit = Credit(gamma=1.0, num_responses_per_prompt=3)
    found, _ = AdvantageFactory.find("ranks")(rewards, penalties, rewards, mask, credit)
    assert found.tolist() == [[-1, -1], [0.5, 0], [0.5, 0.5], [0, 0], [-1, -1], [1, 0]]


def test_the_keys_know_what_a_file_registers_and_what_it_needs(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("model_path: m\nenv: {args: {data_path: .}}\nreward_class: {id: NoReward}\n")
    words = ["--config", str(path), "--advantage_estimator", "ranks", "--policy_loss", "soft_clip", "--print_config"]
    assert main([*words, "--register", RANKS]) == 2
    assert "policy_loss: found 'soft_clip'" in capsys.readouterr().err
    register(SOFT_CLIP)
    assert main([*words, "--register", RANKS]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert (found["num_responses_per_prompt"], found["policy_loss"]) == (4, "soft_clip")


@pytest.mark.slow
def test_a_run_learns_by_the_estimator_and_by_the_loss(run, tmp_path):
    keys = ("--use_share_model", "false", "--rollout_batch_size", "4")
    ranks = ("--advantage_estimator", "ranks", "--num_responses_per_prompt", "2", *keys)
    assert run("--register", RANKS, *ranks, "--experiment_name", "ranks") == 0
    assert run("--register", SOFT_CLIP, "--policy_loss", "soft_clip", "--experiment_name", "soft") == 0
    first, *_ = logged = rows(tmp_path / "run_results" / "soft")
    assert len(logged) == len(rows(tmp_path / "run_results" / "ranks")) == 2
    assert first["ppo/ratio"] == pytest.approx(1, abs=0.1)
    assert "ppo/clip_fraction" not in first


@pytest.mark.parametrize(
    ("returned", "words"),
    [(None, "TypeError"), ((torch.zeros(2), {}), "a tensor (2,)"), ((torch.zeros(()), {"x": 1.0}), "float")],
)
def test_a_loss_that_returns_something_else_is_named(returned, words):
    @LossFactory.register("soft_clip")
    def wrong(x):
        return returned

    with pytest.raises(UserError) as refused:
        make_trainer(policy_loss="soft_clip").step()
    assert "policy_loss 'soft_clip'" in str(refused.value)
    assert words in str(refused.value)


@pytest.mark.parametrize(("shape", "words"), [((3,), "a tensor (3,)"), (None, "TypeError")])
def test_an_estimator_that_returns_something_else_is_named(shape, words):
    @AdvantageFactory.register("ranks")
    def wrong(rewards, penalties, values, response_mask, credit):
        return shape and (torch.zeros(shape), rewards)

    with pytest.raises(UserError) as refused:
        make_trainer(advantage_estimator="ranks").step()
    assert "advantage_estimator 'ranks'" in str(refused.value)
    assert words in str(refused.value)


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
