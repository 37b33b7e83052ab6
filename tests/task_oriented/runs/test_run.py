"""Runs of policies: what they show and leave, how they go on after a kill or a failure, and what they refuse."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler
from rlhf_dialog.task_oriented.runs.run import PolicyConsole
from tests.parts import own_environments  # noqa: F401 - it registers them
from tests.parts.policy_runs import PPO_ARGS, numbers, policy_run

ITERATION = {"iteration": 3, "dialogues": 41, "success": 0.75, "reward": 6.5, "turns": 8.25, "FPS": 812.4}
EVALUATION = {"eval/success": 0.5, "eval/reward": 1.25}
RULES = {"eval/handcrafted_success": 0.875, "eval/handcrafted_reward": 9.0}


@pytest.mark.parametrize(
    ("metrics", "lines"),
    [
        (ITERATION, ["iteration 3  dialogues 41  success 0.750  reward 6.50  turns 8.2  812 turns a second"]),
        (EVALUATION, ["evaluation of iteration 3: success 0.500, reward 1.25"]),
        (EVALUATION | RULES, ["evaluation of iteration 3: success 0.500, reward 1.25 (handcrafted: 0.875, 9.00)"]),
        ({"time/sample": 1.0}, []),
    ],
)
def test_lines_where_nobody_watches(metrics, lines, caplog):
    console = PolicyConsole(live=True)  # there is no terminal
    with caplog.at_level("INFO", logger="rlhf_dialog"):
        console.log(3, metrics)
    console.close()
    assert [record.getMessage() for record in caplog.records] == lines


WHOLE = {"imitation_dialogues": 4, "eval_interval": 4, "save_interval": 4}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    policy_run(folder, **WHOLE).train()
    return folder / "run"


def weights(run: Path) -> bytes:
    return (run / "agent" / "policy.safetensors").read_bytes()


def resumed(folder: Path, **changes) -> Path:
    policy_run(folder, resume=True, **WHOLE | changes).train()
    return folder / "run"


def test_what_a_run_leaves(whole):
    names = ["agent", "checkpoints", "config.yaml", "metrics.jsonl", "plot.png"]
    assert sorted(path.name for path in whole.iterdir()) == names
    rows = numbers(whole)
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["time_steps"] for row in rows] == [50, 100, 150, 200, 250, 300]
    assert [row["iteration"] for row in rows if "eval/success" in row] == [4, 6]
    assert sorted(path.name for path in (whole / "checkpoints").glob("iter_*")) == ["iter_000004", "iter_000006"]
    assert len({row["eval/handcrafted_reward"] for row in rows if "eval/success" in row}) == 1
    assert rows[0]["imitation/accuracy"] > 0
    assert all(later["dialogues"] >= row["dialogues"] for row, later in pairwise(rows))
    agent = json.loads((whole / "agent" / "policy_agent.json").read_text(encoding="utf-8"))
    assert (agent["domain_name"], agent["error_rate"], agent["policy"]["id"]) == ("tea", 0.15, "ppo")


@pytest.mark.slow
def test_a_failure_while_turns_are_sampled_loses_no_finished_iteration(tmp_path, whole, monkeypatch):
    sample, calls = Sampler.sample, []

    def failing(self, *args):
        calls.append(1)
        if len(calls) == 4:
            sample(self, args[0], 17)  # in the middle of the fourth iteration
            raise RunStopped("a process has ended")
        return sample(self, *args)

    monkeypatch.setattr(Sampler, "sample", failing)
    with pytest.raises(RunStopped):
        policy_run(tmp_path, **WHOLE).train()
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text(encoding="utf-8") == "iter_000003"
    assert not (tmp_path / "run" / "agent").exists()
    monkeypatch.setattr(Sampler, "sample", sample)
    run = resumed(tmp_path)
    assert numbers(run) == numbers(whole)
    assert weights(run) == weights(whole)


@pytest.mark.slow
def test_a_run_in_an_environment_of_the_users_own_goes_on_and_has_no_rules_beside_it(tmp_path):
    own = {"environment": {"id": "Guess", "args": {}}, "domain": "restaurant", "error_rate": 0.0, "step_timeout_s": 20}
    own["policy"] = {"id": "ppo", "args": PPO_ARGS | {"final_lr": 1.0}}  # else the learning rate depends on `epoch`
    whole = policy_run(tmp_path, experiment_name="whole", **own).train()
    assert whole["eval/success"] == 1.0
    assert "eval/handcrafted_success" not in whole
    policy_run(tmp_path, epoch=3, **own).train()
    policy_run(tmp_path, resume=True, **own).train()
    assert numbers(tmp_path / "run")[3:] == numbers(tmp_path / "whole")[3:]
    with pytest.raises(UserError, match="was trained on the domain Guess"):
        policy_run(tmp_path, resume=True, epoch=7, **own | {"environment": {"id": "Hurried", "args": {}}}).train()


def test_what_an_environment_of_the_users_own_cannot_do_is_refused_before_anything_is_written(tmp_path):
    own = {"environment": {"id": "Guess", "args": {}}, "domain": "restaurant", "error_rate": 0.0}
    with pytest.raises(UserError, match="rules need a domain"):
        policy_run(tmp_path, imitation_dialogues=3, **own).train()
    with pytest.raises(UserError, match="error_rate: an environment of your own"):
        policy_run(tmp_path, **own | {"error_rate": 0.1})
    with pytest.raises(UserError, match="unknown policy 'pppo'"):
        policy_run(tmp_path, policy={"id": "pppo"}).train()
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_last_line_says_what_came_out_and_where_the_plot_is(tmp_path, caplog):
    with caplog.at_level("INFO", logger="rlhf_dialog"):
        run = policy_run(tmp_path, epoch=3)
        metrics = run.train()
    last = caplog.records[-1].getMessage()
    plot = tmp_path / "run" / "plot.png"
    assert f"3 iterations, {metrics['dialogues']} dialogues: success {metrics['eval/success']:.3f}" in last
    assert f"(handcrafted: {metrics['eval/handcrafted_success']:.3f}, " in last
    assert last.endswith(f"plot: {plot}")
    assert plot.read_bytes().startswith(b"\x89PNG")
    texts = run.transcripts(2)
    assert [text.splitlines()[0].split(",")[0] for text in texts] == ["dialogue 0", "dialogue 1"]
