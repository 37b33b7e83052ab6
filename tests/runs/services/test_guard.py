"""The guard, on numbers made here: its formulas, and what each action does; and in a run, what stays on disk."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rlhf_dialog.commands import export
from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.rewards import BaseReward
from rlhf_dialog.runs.services.guard import Change, Guard, RunGuard, ValidationSnapshot, change
from tests.parts.ppo_runs import rows, same, weights
from tests.parts.rank_runs import RUN, lines
from tests.parts.rank_runs import ppo as ppo

RISING, FALLING = ([0.0, 1.0, 2.0, 4.0], [1.0, 2.5, 3.0, 5.0], [3.0, 4.0, 5.5, 7.0]), (3.0, 2.0, 1.0)


def looks(judges):
    """Three validations in which the score of four prompts rises; a judge's numbers are those given, a little apart."""
    for i, score in enumerate(RISING):
        yield ValidationSnapshot(5 * (i + 1), score, [judges[i] + 0.01 * j * (i + 1) for j in range(4)])


def alarms(guard, judges):
    return [guard.add(look) for look in looks(judges)]


def test_a_change_is_paired_and_leaves_out_what_has_no_number():
    first, last = np.array([1.0, 5.0, 9.0, math.nan]), np.array([2.0, 7.0, 12.0, 1.0])
    found = change(first, last, np.arange(4))
    assert (found.mean, found.error) == (2.0, pytest.approx(1 / math.sqrt(3)))  # changes 1, 2, 3: deviation 1
    assert math.isnan(change(first[3:], last[3:], np.arange(1)).mean)


def test_each_dialogue_counts_once_in_a_change():
    """Prompts with the changes 1, 3 | 4, 6, 8, none | 1: dialogues with the means 2, 6 and 1, whose deviation is sqrt(7)."""
    last = np.array([1.0, 3.0, 4.0, 6.0, 8.0, math.nan, 1.0])
    found = change(np.zeros(7), last, np.array([0, 0, 1, 1, 1, 1, 2]))
    assert (found.mean, found.error, found.num_dialogues) == (3.0, pytest.approx(math.sqrt(7 / 3)), 3)
    assert math.isnan(change(np.zeros(7), last, np.zeros(7, dtype=int)).error)


@pytest.mark.parametrize(("num_dialogues", "least"), [(5, 5.4366), (64, 2.8717)])
def test_a_change_must_exceed_the_quantile_of_a_twentieth_shared_by_18_comparisons(num_dialogues, least):
    """Where 0.05 / 18 of Student's density of 4 and 63 degrees of freedom lies above, by numerical integration."""
    assert [Change(mean, 1.0, num_dialogues).is_rise for mean in (least - 0.001, least + 0.001)] == [False, True]
    assert [Change(-mean, 1.0, num_dialogues).is_fall for mean in (least - 0.001, least + 0.001)] == [False, True]
    assert not Change(-9.0, 1.0, num_dialogues).is_rise


def test_a_score_that_rises_while_the_judge_falls_is_an_alarm_at_the_third_validation():
    guard = Guard("judge_x")
    *early, alarm = alarms(guard, FALLING)
    assert early == [None, None]
    assert alarm.since == 5
    assert alarm.sentence.startswith("from iteration 5 to 15 the score changed by +3.12 (standard error")
    assert "judge_x by -1.97" in alarm.sentence
    higher = ValidationSnapshot(20, [x + 9 for x in RISING[2]], [0.5 + 0.04 * j for j in range(4)])
    assert guard.add(higher) is None  # it needs three again
    assert [one is not None for one in alarms(guard, FALLING)] == [False, False, True]


@pytest.mark.parametrize("judges", [(1.0, 2.0, 3.0), (1.0, 0.5, 1.0)])
def test_no_alarm_while_the_judge_follows_or_stays_or_the_score_falls_too(judges):
    assert alarms(Guard("judge_x"), judges) == [None] * 3
    guard = Guard("judge_x")
    for i, look in enumerate(looks(FALLING)):
        assert guard.add(ValidationSnapshot(look.iteration, RISING[2 - i], look.judge)) is None


def test_the_last_validation_is_compared_with_the_one_two_before():
    """The judge falls at first and then rises a little in each validation; the score rises from the fourth on."""
    guard = Guard("judge_x")
    for i, (score, judge) in enumerate(zip((0.0, 0.0, 0.0, 5.0, 9.0), (9.0, 1.0, 1.2, 1.4, 1.6), strict=True)):
        look = ValidationSnapshot(i, [score + 0.1 * j * i for j in range(4)], [judge + 0.01 * j * i for j in range(4)])
        assert guard.add(look) is None
    assert guard.last["score"].is_rise
    assert guard.last["judge"].mean == pytest.approx(0.4 + 0.03)


def test_the_state_is_json_from_which_another_guard_goes_on_alike():
    """Also where a number is missing, and the prompts of one dialogue are no evidence then."""
    guard, *rest = Guard("judge_x"), *looks(FALLING)
    guard.add(replace(rest[0], score=[math.nan, *rest[0].score[1:]]))
    guard.add(rest[1])
    state = json.loads(json.dumps(guard.state_dict(), allow_nan=False))
    for dialogues, is_alarm in (([3, 3, 3, 3], False), ([0, 1, 2, 3], True)):
        other = Guard("judge_x")
        other.load_state_dict(state)
        assert (other.add(replace(rest[2], dialogues=dialogues)) is not None) == is_alarm
        assert other.last["score"].num_dialogues == (3 if is_alarm else 1)


class Watched:
    """A run with validations in its iterations 5, 10 and 15, and checkpoints of 4 and 6; `guard` has seen them all."""

    iteration, done, judge = 4, False, "judge_x"

    def __init__(self, folder, action, judges=FALLING):
        self.world, self.folder, self.found, self.protected = World(), folder, [], []
        for iteration in (4, 6):
            (folder / f"checkpoints/iter_{iteration:06d}").mkdir(parents=True, exist_ok=True)
        self.guard = RunGuard(action, self)
        assert self.guard.after_iteration(self, {}) == {}
        for look in looks(judges):
            self.iteration = look.iteration
            self.measured = SimpleNamespace(
                per_prompt={"score": np.array(look.score), "judge_x": np.array(look.judge)}, dialogues=None
            )
            self.found.append(self.guard.after_iteration(self, {}))
            self.protected.append(self.guard.state_dict()["protected"])

    def due(self, iteration, done):
        return iteration % 5 == 0

    def again(self, action):
        """A guard that goes on from the state of this one."""
        other = RunGuard(action, self)
        other.load_state_dict(json.loads(json.dumps(self.guard.state_dict())))
        return other


def test_an_alarm_stops_the_run_after_a_checkpoint_again_and_again_until_it_may_only_warn(tmp_path, caplog):
    run = Watched(tmp_path, "stop")
    assert run.guard.wants_checkpoint(run)
    assert run.protected == [[5], [5, 10], [5]]
    for stop in (lambda: run.guard.iteration_ended(run, True), lambda: run.again("stop").begin(run)):
        with pytest.raises(RunStopped, match=r"from iteration 5 to 15 .* --checkpoint iter_000004 "):
            stop()
    run.again("warn").begin(run)
    assert not caplog.records
    assert Watched(tmp_path, "stop", (1.0, 2.0, 3.0)).protected[2] == [10, 15]


def test_a_warning_does_not_stop_and_the_changes_are_metrics(tmp_path, caplog):
    run = Watched(tmp_path, "warn")
    assert [metrics["guard/alarm"] for metrics in run.found] == [0, 0, 1]
    assert (run.found[1].keys(), run.protected) == ({"guard/alarm"}, [[], [], []])
    score, error, judge = (run.found[2][f"guard/{name}"] for name in ("score_change", "score_error", "judge_change"))
    assert (score, error, judge) == pytest.approx((3.125, 0.125, -1.97))  # changes 3, 3, 3.5, 3
    assert "from iteration 5 to 15" in caplog.text
    assert not run.guard.wants_checkpoint(run)
    run.guard.iteration_ended(run, True)


# -- in a run

JUDGE = {
    "up": "{action: %s, judge: {id: ByIteration, args: {slope: 1.0}}}",
    "down": "{action: %s, judge: {id: ByIteration}}",
}
EVERY = ("--eval_interval", "1", "--eval_episodes", "6", "--save_interval", "1", "--keep_checkpoints", "5")
REWARD = "{id: ByIteration, args: {slope: 1.0}}"


class ByIteration(BaseReward):
    name = "by_iteration"

    def __init__(self, slope: float = -1.0):
        self.slope, self.now = slope, 0

    def begin_scoring(self, purpose, iteration):
        self.now = iteration

    def __call__(self, dialogues):
        return [self.slope * self.now + 0.01 * self.now * (i % 5) for i in range(len(dialogues))]


def guarded(run, action: str, *words: str, judge: str = "down", iterations: int = 3) -> int:
    RewardFactory.classes["ByIteration"] = ByIteration  # `run` restores the classes at the end
    words = ("--reward_class", REWARD, "--guard", JUDGE[judge] % action, *EVERY, *words)
    return run(*words, "--max_iterations", str(iterations))


def folder(tmp_path, name="ppo"):
    return tmp_path / "run_results" / name


@pytest.mark.slow
def test_a_warning_changes_nothing_and_a_judge_that_follows_raises_none(run, tmp_path, caplog):
    assert guarded(run, "warn", "--experiment_name", "watched") == 0
    (said,) = [one.getMessage() for one in caplog.records if one.getMessage().startswith("guard: ")]
    assert "from iteration 1 to 3 the score changed by +2" in said
    found = rows(folder(tmp_path, "watched"))
    assert [row["guard/alarm"] for row in found] == [0, 0, 1]
    assert found[2]["guard/judge_change"] == pytest.approx(-2 + 0.02 * 2, abs=0.03)
    assert found[2]["eval/judge_by_iteration"] == pytest.approx(-3, abs=0.2)
    assert guarded(run, "stop", "--experiment_name", "alone", judge="up") == 0
    assert [row["guard/alarm"] for row in rows(folder(tmp_path, "alone"))] == [0, 0, 0]
    assert same(weights(folder(tmp_path, "watched") / "agent"), weights(folder(tmp_path, "alone") / "agent"))
    stored = json.loads((folder(tmp_path, "alone") / "checkpoints/iter_000003/trainer.json").read_text())["guard"]
    assert [len(set(look["dialogues"])) for look in stored["guard"]["looks"]] == [3] * 3  # of six prompts


@pytest.mark.multiprocess
def test_two_ranks_stop_in_the_iteration_in_which_one_process_stops(ppo):
    RewardFactory.classes["ByIteration"] = ByIteration
    words = ("--reward_class", REWARD, *EVERY, "--guard", JUDGE["down"] % "stop", "--max_iterations", "5")
    ended = ppo(2, *words)
    assert [code for code, _, _ in ended] == [3, 3]
    assert sum("guard" in err for _, _, err in ended) == 1  # one voice
    assert [line["guard/alarm"] for line in lines(RUN)] == [0, 0, 1]


def checkpoints(tmp_path):
    return sorted(path.name for path in (folder(tmp_path) / "checkpoints").glob("iter_*"))


@pytest.mark.slow
def test_the_checkpoint_from_before_outlives_newer_ones_and_the_message_exports_it(run, tmp_path, capsys):
    """Validations 2, 4 and 6; the best is the last, since its score is the highest."""
    words = ("--eval_interval", "2", "--keep_checkpoints", "1")
    assert guarded(run, "stop", *words, iterations=9) == 3
    said = capsys.readouterr().err.strip()
    command = f"export --run {Path('run_results/ppo')} --checkpoint iter_000002 --output "
    assert f"rlhf-dialog {command}DIR" in said
    assert checkpoints(tmp_path) == ["iter_000002", "iter_000006"]
    assert export.main([*command.split()[1:], "agent_before"]) == 0
    stored = load_file(folder(tmp_path) / "checkpoints/iter_000002/policy.safetensors")
    exported = load_file(Path("agent_before/model.safetensors"))
    assert torch.equal(exported["transformer.wpe.weight"], stored["lm.transformer.wpe.weight"])
