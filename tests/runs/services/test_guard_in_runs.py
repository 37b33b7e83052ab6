"""A run with a guard: each action, what stays on disk, and a run that was stopped and resumed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlhf_dialog.commands import export
from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.rewards import BaseReward
from tests.parts.ppo_runs import rows, same, weights
from tests.parts.rank_runs import RUN, lines
from tests.parts.rank_runs import ppo as ppo

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


@pytest.mark.slow
def test_stopping_ends_with_3_after_a_checkpoint_and_can_go_on(run, tmp_path):
    assert guarded(run, "stop", "--save_interval", "10", iterations=2) == 0
    assert guarded(run, "stop", "--save_interval", "10", "--resume", iterations=6) == 3
    assert (folder(tmp_path) / "checkpoints/latest").read_text() == "iter_000003"
    assert guarded(run, "stop", "--resume", iterations=6) == 3  # it says so again
    assert guarded(run, "warn", "--resume", iterations=6) == 0
    assert [row["iteration"] for row in rows(folder(tmp_path))] == [*range(1, 7)]


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
    assert said.endswith(f"rlhf-dialog export --run {Path('run_results/ppo')} --checkpoint iter_000002 --output DIR")
    assert checkpoints(tmp_path) == ["iter_000002", "iter_000006"]
    *_, command = said.partition("rlhf-dialog ")
    assert export.main([*command.split()[1:-1], "agent_before"]) == 0
    stored = load_file(folder(tmp_path) / "checkpoints/iter_000002/policy.safetensors")
    exported = load_file(Path("agent_before/model.safetensors"))
    assert torch.equal(exported["transformer.wpe.weight"], stored["lm.transformer.wpe.weight"])


@pytest.mark.slow
def test_checkpoints_that_can_become_the_one_from_before_are_kept_until_they_cannot(run, tmp_path):
    words = ("--eval_interval", "3", "--keep_checkpoints", "1", "--eval_metric", "mean_words")
    assert guarded(run, "stop", *words, judge="up", iterations=8) == 0  # validations 3, which is the best, 6 and 8
    assert checkpoints(tmp_path) == ["iter_000003", "iter_000006", "iter_000008"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--guard", JUDGE["up"] % "warn"), "set eval_interval too"),
        (("--guard", "{action: warn}", *EVERY), "guard.judge"),
        (("--guard", JUDGE["up"] % "shout", *EVERY), "guard.action"),
        (("--guard", "{action: warn, judge: {id: Nobody}}", *EVERY), "unknown reward 'Nobody'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(refused, words, message):
    assert message in refused(*words)
