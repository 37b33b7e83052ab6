"""The display of a policy's run: lines of the log, and on a terminal a live line.

Rewards as people give them.

Runs of policies: what they leave, how they go on after a kill or a failure, and what they refuse."""

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.runs.services.trackers import Trackers
from rlhf_dialog.task_oriented.policies.base import Episode
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler
from rlhf_dialog.task_oriented.runs.run import PolicyConsole, with_reward_noise
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from tests.parts import own_environments  # noqa: F401 - it registers them
from tests.parts.policy_runs import PPO_ARGS, domain_file, numbers, policy_run
from tests.parts.processes import ROOT

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
        console.advance(0.5)
    with console.pause():
        console.close()
    assert [record.getMessage() for record in caplog.records] == lines


def episode(dialogue=0, success=True, terminated=True):
    """Two turns of a dialogue of `ActLevel`."""
    rewards = np.array([-1.0, 19.0 if success and terminated else -1.0], dtype=np.float32)
    zeros = np.zeros((2, 3), dtype=np.float32)
    columns = (zeros, zeros > 0, np.zeros(2, dtype=np.int64), zeros[:, 0], rewards, zeros[:, 0])
    return Episode(*columns, terminated, False, zeros[0], dialogue, success=success, total_reward=float(rewards.sum()))


@pytest.mark.parametrize("success", [True, False])
def test_a_wrong_judgement_pays_for_the_opposite(success):
    right = episode(success=success)
    wrong = with_reward_noise(right, 1.0, seed=0)
    assert wrong.rewards.tolist() == [-1.0, -1.0 if success else 19.0]
    assert (wrong.success, wrong.total_reward) == (success, right.total_reward)
    assert right.rewards.tolist()[1] == (19.0 if success else -1.0)


def test_a_piece_that_is_not_the_end_and_a_share_of_0_change_nothing():
    piece = episode(terminated=False)
    assert with_reward_noise(piece, 1.0, seed=0) is piece
    assert with_reward_noise(episode(), 0.0, seed=0).rewards.tolist() == [-1.0, 19.0]


def test_the_share_and_which_dialogues_follow_from_the_seed():
    def wrong(seed):
        return [with_reward_noise(episode(number), 0.2, seed).rewards[1] < 0 for number in range(2000)]

    assert np.mean(wrong(0)) == pytest.approx(0.2, abs=0.03)
    assert wrong(0) == wrong(0)
    assert wrong(0) != wrong(1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    policy_run(folder, imitation_dialogues=4).train()
    return folder / "run"


def weights(run: Path) -> bytes:
    return (run / "agent" / "policy.safetensors").read_bytes()


def resumed(folder: Path, **changes) -> Path:
    policy_run(folder, resume=True, imitation_dialogues=4, **changes).train()
    return folder / "run"


def test_what_a_run_leaves(whole):
    names = ["agent", "checkpoints", "config.yaml", "metrics.jsonl", "plot.png"]
    assert sorted(path.name for path in whole.iterdir()) == names
    rows = numbers(whole)
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["time_steps"] for row in rows] == [50, 100, 150, 200, 250, 300]
    assert [row["iteration"] for row in rows if "eval/success" in row] == [3, 6]
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
        policy_run(tmp_path, imitation_dialogues=4).train()
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text(encoding="utf-8") == "iter_000003"
    assert not (tmp_path / "run" / "agent").exists()
    monkeypatch.setattr(Sampler, "sample", sample)
    run = resumed(tmp_path)
    assert numbers(run) == numbers(whole)
    assert weights(run) == weights(whole)


PROGRAM = """
import os, signal, sys
from pathlib import Path
from tests.parts.policy_runs import policy_run
from rlhf_dialog.task_oriented.policies.ppo import PPO
update = PPO.update
def killing(self):
    if self.num_updates == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return update(self)
PPO.update = killing
policy_run(Path(sys.argv[1]), imitation_dialogues=4, save_interval=3).train()
"""


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_bit_for_bit(tmp_path, whole):
    domain_file(tmp_path)
    killed = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert len(numbers(tmp_path / "run")) == 4
    run = resumed(tmp_path, process_num=2)  # other processes change no number
    assert numbers(run) == numbers(whole)
    assert weights(run) == weights(whole)


@pytest.mark.slow
def test_a_signal_lets_the_iteration_finish_and_saves_it(tmp_path, whole, monkeypatch):
    run = policy_run(tmp_path, imitation_dialogues=4, save_interval=100)
    original = Trackers.log

    def signalled(self, step, metrics):
        original(self, step, metrics)
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trackers, "log", signalled)
    with pytest.raises(SystemExit) as end:
        run.train()
    assert end.value.code == 128 + signal.SIGTERM
    latest = (tmp_path / "run" / "checkpoints" / "latest").read_text(encoding="utf-8")
    assert latest == f"iter_{len(numbers(tmp_path / 'run')):06d}"
    monkeypatch.setattr(Trackers, "log", original)
    assert numbers(resumed(tmp_path)) == numbers(whole)


@pytest.mark.slow
def test_a_run_goes_on_only_with_its_own_domain_and_settings(tmp_path):
    policy_run(tmp_path, epoch=2, eval_interval=0).train()
    with pytest.raises(UserError, match="seed: 0 -> 1"):
        policy_run(tmp_path, resume=True, epoch=3, seed=1).train()
    domain_file(tmp_path, type="bar")
    with pytest.raises(UserError, match="trained on an earlier state of it"):
        policy_run(tmp_path, resume=True, epoch=3).train()


def test_a_mistake_leaves_no_folder(tmp_path):
    with pytest.raises(UserError, match="unknown policy 'pppo'"):
        policy_run(tmp_path, policy={"id": "pppo"}).train()
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_dialogues_in_the_log(tmp_path, caplog):
    with caplog.at_level("INFO", logger="rlhf_dialog"):
        policy_run(tmp_path, epoch=2, eval_interval=0, sample_interval=2, log_interval=1).train()
    samples = [record.getMessage() for record in caplog.records if record.getMessage().startswith("sample of")]
    assert len(samples) == 1
    assert "sample of iteration 2\ndialogue " in samples[0]
    assert "iteration 1  dialogues " in caplog.text


def test_an_environment_that_raises_names_itself(tmp_path, monkeypatch):
    def broken(self, action):
        raise ValueError("broken on purpose")

    monkeypatch.setattr(ActLevel, "step", broken)
    with pytest.raises(UserError, match=r"ActLevel\.step raised ValueError: broken on purpose\nTraceback"):
        policy_run(tmp_path, eval_interval=0).train()


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
    with pytest.raises(UserError, match="error_rate: an environment of your own does not read it"):
        policy_run(tmp_path, **own | {"error_rate": 0.1})
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_wrong_rewards_are_learned_from_and_not_reported(tmp_path):
    keys = {"epoch": 1, "eval_interval": 0, "policy": {"id": "gp_sarsa", "args": {}}}
    policy_run(tmp_path, experiment_name="right", **keys).train()
    policy_run(tmp_path, experiment_name="wrong", wrong_rewards=1.0, **keys).train()
    (right,), (wrong,) = (numbers(tmp_path / name) for name in ("right", "wrong"))
    assert {name for name in right if right[name] != wrong[name]} == {"gp/error"}  # not success, not reward


@pytest.mark.slow
def test_the_last_line_says_what_came_out_and_where_the_plot_is(tmp_path, caplog):
    with caplog.at_level("INFO", logger="rlhf_dialog"):
        run = policy_run(tmp_path, epoch=3)
        metrics = run.train()
    last = caplog.records[-1].getMessage()
    plot = tmp_path / "run" / "plot.png"
    assert last.startswith(
        f"done after 3 iterations, {metrics['dialogues']} dialogues: success {metrics['eval/success']:.3f}"
    )
    assert f"(handcrafted: {metrics['eval/handcrafted_success']:.3f}, " in last
    assert last.endswith(f"plot: {plot}")
    assert plot.read_bytes().startswith(b"\x89PNG")
    texts = run.transcripts(2)
    assert [text.splitlines()[0].split(",")[0] for text in texts] == ["dialogue 0", "dialogue 1"]
