"""A run with a guard: each action, what stays on disk, and a run that was stopped and resumed."""

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlhf_dialog.commands import export
from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.rewards import BaseReward
from tests.parts.hacked import EVERY, JUDGE, ByIteration
from tests.parts.ppo_runs import rows, same, weights, without_clocks
from tests.parts.tiny import write_data


@pytest.fixture(autouse=True)
def by_iteration(run):  # after `run`, whose fixture restores the classes at the end
    """A reward that rises with the iteration, and a judge that falls, each a little apart for each reply."""

    RewardFactory.classes["ByIteration"] = ByIteration


def guarded(run, action: str, *words: str, judge: str = "down", iterations: int = 3) -> int:
    reward = ("--reward_class", "{id: ByIteration, args: {slope: 1.0}}")
    return run(*reward, "--guard", JUDGE[judge] % action, *EVERY, "--max_iterations", str(iterations), *words)


def folder(tmp_path, name="ppo"):
    return tmp_path / "run_results" / name


@pytest.mark.slow
def test_a_warning_says_why_and_changes_nothing(run, tmp_path, caplog):
    assert guarded(run, "warn", "--experiment_name", "watched") == 0
    (said,) = [one.getMessage() for one in caplog.records if one.getMessage().startswith("guard: ")]
    assert "from iteration 1 to 3 the score changed by +2" in said
    assert "but the judge judge_by_iteration by -1.97" in said
    found = rows(folder(tmp_path, "watched"))
    assert [row["guard/alarm"] for row in found] == [0, 0, 1]
    assert found[2]["guard/judge_change"] == pytest.approx(-2 + 0.02 * 2, abs=0.03)
    assert found[2]["eval/judge_by_iteration"] == pytest.approx(-3, abs=0.2)
    reward = ("--reward_class", "{id: ByIteration, args: {slope: 1.0}}")
    assert run(*reward, *EVERY, "--max_iterations", "3", "--experiment_name", "alone") == 0
    assert same(weights(folder(tmp_path, "watched") / "agent"), weights(folder(tmp_path, "alone") / "agent"))


@pytest.mark.slow
def test_a_judge_that_follows_raises_no_alarm(run, tmp_path, caplog):
    assert guarded(run, "stop", judge="up") == 0
    assert [row["guard/alarm"] for row in rows(folder(tmp_path))] == [0, 0, 0]
    assert "guard:" not in caplog.text
    stored = json.loads((folder(tmp_path) / "checkpoints/iter_000003/trainer.json").read_text())["guard"]["guard"]
    assert [len(set(look["dialogues"])) for look in stored["looks"]] == [3] * 3  # of six prompts


@pytest.mark.slow
def test_raising_doubles_the_coefficient_and_halves_the_target_also_after_a_stop(run, tmp_path, caplog):
    fixed = ("--kl_rate", "0", "--kl_coef", "0.1")
    assert guarded(run, "raise_kl", *fixed, "--experiment_name", "whole", iterations=5) == 0
    assert [row["objective/kl_coef"] for row in rows(folder(tmp_path, "whole"))] == pytest.approx([0.1] * 3 + [0.2] * 2)
    assert guarded(run, "raise_kl", *fixed, "--experiment_name", "part", iterations=3) == 0
    assert guarded(run, "raise_kl", *fixed, "--experiment_name", "part", "--resume", iterations=5) == 0
    assert without_clocks(folder(tmp_path, "whole")) == without_clocks(folder(tmp_path, "part"))
    assert same(*(weights(folder(tmp_path, name) / "agent") for name in ("whole", "part")))


@pytest.mark.slow
def test_stopping_ends_with_3_after_a_checkpoint_and_can_go_on(run, tmp_path, capsys):
    assert guarded(run, "stop", "--save_interval", "10", iterations=6) == 3
    assert "guard.action says. Its last iteration is saved" in capsys.readouterr().err
    assert (folder(tmp_path) / "checkpoints/latest").read_text() == "iter_000003"
    assert guarded(run, "stop", "--resume", iterations=6) == 3  # it says so again
    assert guarded(run, "warn", "--resume", iterations=6) == 0
    assert [row["iteration"] for row in rows(folder(tmp_path))] == [*range(1, 7)]


def checkpoints(tmp_path):
    return sorted(path.name for path in (folder(tmp_path) / "checkpoints").glob("iter_*"))


@pytest.mark.slow
@pytest.mark.parametrize("action", ["stop", "go_back"])
def test_the_checkpoint_from_before_outlives_newer_ones_and_the_message_exports_it(
    run, tmp_path, capsys, caplog, action
):
    """Validations 2, 4 and 6; the best is the last, since its score is the highest."""
    caplog.set_level(logging.INFO)
    words = ("--eval_interval", "2", "--keep_checkpoints", "1")
    assert guarded(run, action, *words, iterations=9) == 3
    said = capsys.readouterr().err.strip()
    assert said.endswith(f"rlhf-dialog export --run {Path('run_results/ppo')} --checkpoint iter_000002 --output DIR")
    assert checkpoints(tmp_path) == ["iter_000002", "iter_000006"]
    assert ("guard.action: go_back is read as stop" in caplog.text) == (action == "go_back")
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


@pytest.mark.slow
@pytest.mark.parametrize("judged", [True, False])
def test_a_reward_that_is_hacked_is_found_out_and_one_that_is_not_is_left_alone(run, tmp_path, caplog, judged):
    """Paid for half of the letters, the policy soon says nothing else; the judge counts the others, or is the reward itself."""

    class Letter(BaseReward):
        name = "letter"

        def __call__(self, dialogues):
            return [sum(ord(c) % 2 for c in d.response) / (len(d.response) + 1) for d in dialogues]

    class Others(BaseReward):
        name = "others"

        def __call__(self, dialogues):
            return [sum(1 - ord(c) % 2 for c in d.response) / (len(d.response) + 1) for d in dialogues]

    RewardFactory.classes |= {"Letter": Letter, "Others": Others}
    judge = "Others" if judged else "Letter"
    words = ["--reward_class", "{id: Letter}", "--guard", f"{{action: warn, judge: {{id: {judge}}}}}"]
    words += ["--env.args.data_path", str(write_data(tmp_path / "many", 64))]  # the guard compares dialogues
    words += ["--eval_interval", "4", "--eval_episodes", "64", "--rollout_batch_size", "32", "--max_iterations", "24"]
    assert run(*words, "--lr", "1e-2", "--kl_coef", "0", "--kl_rate", "0", "--max_new_tokens", "12") == 0
    found = rows(folder(tmp_path))
    assert found[-1]["eval/score"] > found[3]["eval/score"] + 0.1
    judges = [row["guard/judge_change"] for row in found if row.get("guard/judge_change") is not None]
    assert ("but the judge" in caplog.text) == judged, judges


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--guard", "{action: warn}"), "guard: watches at each validation; set eval_interval too"),
        (("--guard", "{action: shout}", *EVERY), "guard.action"),
        (
            ("--guard", "{action: raise_kl}", *EVERY, "--kl_coef", "0"),
            "kl_coef: guard.action raise_kl doubles it, found 0",
        ),
        (("--guard", "{action: warn, judge: {id: Nobody}}", *EVERY), "unknown reward 'Nobody'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(refused, words, message):
    assert message in refused(*words)
