"""Runs whose reward is a model: its numbers in the log, a resume, an evaluation, a critic that starts from it."""

import json

import pytest

from rlhf_dialog.commands import evaluate
from tests.parts.ppo_runs import rows, same, weights, without_clocks
from tests.parts.scalars import save_scalar

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    return [save_scalar(base / str(seed), "gpt2", seed, n_positions=256) for seed in range(2)]


def reward_of(models):
    part = {"id": "RewardModel", "args": {"model": models[0], "clip": 2.0}}
    return ["--reward_class", json.dumps({"id": "CompositeReward", "args": {"parts": [{"id": "LengthMatch"}, part]}})]


def test_a_reward_model_is_logged_resumed_and_evaluated(run, tmp_path, models):
    words = [*reward_of(models), "--eval_interval", "2", "--eval_episodes", "4", "--critic_path", models[0]]
    for name, lengths in (("parts", ("1", "3")), ("whole", ("3",))):
        for i, length in enumerate(lengths):
            resume = ["--resume"] if i else []
            assert run(*words, "--experiment_name", name, "--max_iterations", length, *resume) == 0
    parts, whole = (tmp_path / "run_results" / name for name in ("parts", "whole"))
    lines = rows(whole)
    assert all(abs(row["reward/reward_model"]) <= 2 for row in lines)
    kept = [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in without_clocks(whole)]
    assert [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in without_clocks(parts)] == kept
    assert same(weights(parts / "agent"), weights(whole / "agent"))
    output = tmp_path / "evaluation.json"
    argv = ["--agent", str(whole / "agent"), "--output", str(output), "--max_prompts", "4", "--no_intent"]
    assert evaluate.main(argv) == 0
    metrics = json.loads(output.read_text(encoding="utf-8"))["metrics"]
    assert metrics["score"]["mean"] == pytest.approx(
        metrics["reward_model"]["mean"] + metrics["length_match"]["mean"], abs=1e-4
    )
