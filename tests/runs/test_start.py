"""What a run begins with and leaves beside its checkpoints."""

from pathlib import Path

import pytest

from rlhf_dialog.errors import SignalExit
from rlhf_dialog.runs.optional_outputs import OptionalOutputs
from rlhf_dialog.runs.smoke import two_prompts
from tests.parts.ppo_runs import rows
from tests.parts.trainers import settings

RUN = Path("run_results/ppo")


@pytest.mark.slow
def test_resume_auto_begins_a_run_and_goes_on_with_it(run, capsys):
    words = ["--resume", "auto", "--save_interval", "1"]
    assert run("--resume", "--max_iterations", "1") == 2
    assert "contains no checkpoint to resume from" in capsys.readouterr().err
    assert run(*words, "--max_iterations", "1") == 0
    assert run(*words, "--max_iterations", "2") == 0
    assert "resumed after iteration 1" in capsys.readouterr().err
    assert [row["iteration"] for row in rows(RUN)] == [1, 2]
    before = (RUN / "metrics.jsonl").read_bytes()
    assert run(*words, "--max_iterations", "2") == 0  # of a finished run
    assert (RUN / "metrics.jsonl").read_bytes() == before
    assert run("--max_iterations", "2") == 2  # without it, a run in the folder is refused as ever


@pytest.mark.slow
def test_resume_auto_takes_the_weights_of_another_run_only_to_begin_with(run, capsys):
    assert run("--max_iterations", "1", "--experiment_name", "old") == 0
    words = ["--resume", "auto", "--resume_weights_only", "run_results/old", "--save_interval", "1"]
    assert run(*words, "--max_iterations", "1") == 0
    assert "loaded the weights of" in capsys.readouterr().err
    assert run(*words, "--max_iterations", "2") == 0
    said = capsys.readouterr().err
    assert "loaded the weights of" not in said
    assert "resumed after iteration 1" in said


@pytest.mark.slow
def test_resume_auto_begins_again_where_a_kill_came_before_the_weights_were_saved(run, capsys):
    assert run("--max_iterations", "1", "--experiment_name", "old") == 0
    (RUN / "checkpoints/.iter_000000.tmp").mkdir(parents=True)
    (RUN / "config.yaml").write_text("")
    words = ["--resume", "auto", "--resume_weights_only", "run_results/old", "--max_iterations", "1"]
    assert run(*words) == 0
    assert "loaded the weights of" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "number"), [("gae", 1), ("rloo", 4)])
def test_the_smoke_test_has_two_prompts_with_every_estimator(name, number):
    small = two_prompts(settings(advantage_estimator=name, rollout_batch_size=40), "folder", 1)
    assert (small.num_responses_per_prompt, small.rollout_batch_size) == (number, 2 * number)


class Thing:
    def __init__(self, closed):
        self.closed = closed

    def close(self):
        self.closed.append(self)


def test_what_fails_is_closed_and_warned_of_once(caplog):
    things, closed = OptionalOutputs(), []
    things.add("one", lambda: Thing(closed))
    things.add("two", lambda: Thing(closed))
    things.add("three", lambda: 1 / 0)
    for _ in range(2):
        things.use("one", lambda _: 1 / 0)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "three has failed and is not used any more",
        "one has failed and is not used any more",
    ]
    assert (list(things.others), len(closed)) == (["two"], 1)
    things.close()
    assert len(closed) == 2


def test_a_signal_passes():
    things = OptionalOutputs()
    things.add("one", lambda: Thing([]))

    def leave(_):
        raise SignalExit(143)

    with pytest.raises(SignalExit):
        things.use("one", leave)
