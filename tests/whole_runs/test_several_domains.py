"""A dialogue policy for several domains, from its YAML to its measures: resume, processes, and what is refused."""

import json
import re

import pytest

from rlhf_dialog.task_oriented.commands import evaluate_policy, train_policy
from rlhf_dialog.task_oriented.runs.run import PolicyRun
from rlhf_dialog.task_oriented.runs.settings import load_policy_config
from tests.parts.folders import contents
from tests.parts.policy_runs import PPO_ARGS, numbers
from tests.parts.small_world import tables, write_world

pytestmark = pytest.mark.slow

SMALL = {
    **{"domain": "multiwoz", "max_turns": 20, "batchsz": 60, "epoch": 4, "num_envs": 4, "eval_interval": 2},
    **{"eval_dialogues": 5, "save_interval": 1, "imitation_dialogues": 10},
    **{"policy": {"id": "ppo", "args": PPO_ARGS}, "experiment_name": "run"},
}


def run(folder, world, resume=False, **changes):
    config = load_policy_config(None, SMALL | {"data_path": str(world), "run_dir": str(folder)} | changes)
    PolicyRun(config, resume=resume).run()
    return folder / "run"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, world):
    return run(tmp_path_factory.mktemp("whole"), world)


def test_an_agent_is_measured_beside_both_baselines(whole, tmp_path, capsys):
    output = tmp_path / "found.json"
    words = ["--agent", str(whole / "agent"), "--dialogues", "12", "--output", str(output), "--transcripts", "2"]
    assert evaluate_policy.main(words) == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"^dialogue \d+, goal: ", printed, re.MULTILINE)) == 2
    assert len(re.findall(r"^  (?:success|failure) after", printed, re.MULTILINE)) == 2
    found = json.loads(output.read_text(encoding="utf-8"))
    for metrics in found["policies"].values():
        for name in ("success", "reward", "turns", "inform_precision", "inform_recall", "inform_f1", "book_rate"):
            assert metrics[name]["low"] <= metrics[name]["mean"] <= metrics[name]["high"]
    assert set(found["policies"]) == {"agent", "handcrafted", "random"}
    handcrafted = found["policies"]["handcrafted"]
    total_reward = 120 * handcrafted["success"]["mean"] - 40 - handcrafted["turns"]["mean"]
    assert handcrafted["reward"]["mean"] == pytest.approx(total_reward)


def test_other_data_are_refused_by_name(whole, tmp_path, capsys):
    hotels = tables()["hotel"]
    hotels[0]["phone"] = "1"
    other = write_world(tmp_path, hotel=hotels)
    assert evaluate_policy.main(["--agent", str(whole / "agent"), "--data_path", str(other)]) == 2
    assert "was trained on an earlier state of it (hash " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["multiwoz_manager", "multiwoz_committee"])
def test_policies_of_several_domains_are_trained_go_on_and_are_measured(tmp_path, world, name, capsys):
    def train(folder, epoch, *words):
        sizes = ["--batchsz", "48", "--num_envs", "4", "--eval_interval", "0", "--epoch", str(epoch)]
        given = ["--config", f"{name}.yaml", "--data_path", str(world), "--run_dir", str(tmp_path / folder)]
        assert train_policy.main([*given, *sizes, *words]) == 0
        return tmp_path / folder / name

    whole = train("whole", 4)
    train("halves", 2)
    resumed = train("halves", 4, "--resume")
    assert numbers(resumed) == numbers(whole)
    assert contents(resumed / "agent" / "hotel") == contents(whole / "agent" / "hotel") != {}
    newest = resumed / "checkpoints" / "iter_000004"
    assert "hotel/policy.json" in json.loads((newest / "trainer.json").read_text(encoding="utf-8"))["files"]
    (newest / "hotel" / "policy.json").write_text("{}", encoding="utf-8")
    words = ["--config", f"{name}.yaml", "--data_path", str(world), "--run_dir", str(tmp_path / "halves"), "--resume"]
    assert (
        train_policy.main([*words, "--batchsz", "48", "--num_envs", "4", "--eval_interval", "0", "--epoch", "5"]) == 2
    )
    assert evaluate_policy.main(["--agent", str(whole / "agent"), "--dialogues", "4"]) == 0
    assert "handcrafted" in capsys.readouterr().out
