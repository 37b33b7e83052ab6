"""What an exception costs: nothing between two iterations, and inside of one what the last checkpoint does not have."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rlhf_dialog import UserError, VecInfo, VecInfoFactory
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.rewards.base import RewardError
from rlhf_dialog.runs.services.base import Service, end_iteration
from rlhf_dialog.runs.services.rescue import Rescue, failures_recorded
from tests.parts.ppo_runs import rows, same, weights, without_clocks
from tests.parts.trainers import settings

RUN = Path("run_results/ppo")


class Trainer:
    """Counts iterations; raises ValueError in iteration `at`, after its update if `late`."""

    def __init__(self, at=0, late=False):
        self.iteration, self.time_steps, self.episodes = 0, 0, 0
        self.at, self.late = at, late

    def step(self) -> dict:
        if self.at == self.iteration + 1 and not self.late:
            raise ValueError("broken")
        self.iteration += 1
        self.time_steps, self.episodes = 10 * self.iteration, 2 * self.iteration
        if self.at == self.iteration:
            raise ValueError("broken")
        return {"iteration": self.iteration, "x": 0.5}


class FourIterations:
    """A run in a folder, in which a checkpoint may be; `saved` are the iterations that were saved since."""

    def __init__(self, folder, trainer, checkpoint=None):
        self.trainer, self.folder, self.saved = trainer, folder, []
        self.config = SimpleNamespace(save_interval=5)
        self.world = SimpleNamespace(size=1, is_main=True, on_main=lambda action: action())
        if checkpoint is not None:
            (folder / f"checkpoints/iter_{checkpoint:06d}").mkdir(parents=True)

    @property
    def iteration(self):
        return self.trainer.iteration

    def save(self):
        self.saved.append(self.iteration)


class Lines(Service):
    def __init__(self, is_complete):
        self.lines, self.is_complete = [], is_complete

    def complete(self, run, metrics):
        self.lines.append((run.iteration, metrics))
        return self.is_complete


def iterate(run, error=None, at=0, is_complete=True):
    """Four iterations, after one of which an error is raised; what a service was asked to complete."""
    service = Lines(is_complete)
    rescue = Rescue(run, [service, Service()], run.save)
    for _ in range(4):
        try:
            with rescue.step():
                metrics = run.trainer.step()
            with rescue.save_on_error(metrics):
                if error is not None and run.iteration == at:
                    raise error
        except BaseException as raised:
            raised.completed = service.lines
            raise
    return service.lines


def test_iterations_without_an_error_save_nothing(tmp_path, caplog):
    run = FourIterations(tmp_path, Trainer())
    assert iterate(run) == []
    assert (run.iteration, run.saved, caplog.messages) == (4, [], [])


@pytest.mark.parametrize(
    ("at", "checkpoint", "lost"),
    [(4, 2, "iterations 3 to 3"), (3, None, "iterations 1 to 2"), (4, 3, None), (1, None, None)],
)
def test_an_error_inside_an_iteration_leaves_the_last_checkpoint_and_says_what_is_lost(
    tmp_path, caplog, at, checkpoint, lost
):
    run = FourIterations(tmp_path, Trainer(at), checkpoint)
    with pytest.raises(ValueError, match="broken"):
        iterate(run)
    assert run.saved == []
    assert len(caplog.messages) == (lost is not None)
    assert all(lost in text and "save_interval (now 5)" in text for text in caplog.messages)


def test_an_error_after_the_update_of_an_iteration_saves_it_with_a_short_line(tmp_path, caplog):
    for size, saved in ((2, []), (1, [3])):  # of several ranks one may have met it alone
        run = FourIterations(tmp_path, Trainer(3, late=True))
        run.world.size = size
        with pytest.raises(ValueError, match="broken") as raised:
            iterate(run)
        assert run.saved == saved
    assert raised.value.completed == [(3, {"iteration": 3, "time_steps": 30, "episodes": 6})]
    assert "iteration 3, which is saved" in caplog.text


def fail_after(run, error, at=2, **options):
    with pytest.raises(type(error)) as raised:
        iterate(run, error, at, **options)
    return raised.value.completed


@pytest.mark.parametrize(
    ("error", "size", "is_complete", "saved"),
    [
        (KeyError("x"), 1, True, [2]),
        (UserError("metrics.jsonl: cannot be written"), 1, False, []),  # without its line it could not be resumed
        (RuntimeError("Connection closed by peer"), 2, True, []),  # saving waits for all ranks
        (KeyError("x"), 2, True, [2]),
        (KeyboardInterrupt(), 1, True, []),
        (SystemExit(), 1, True, []),
    ],
)
def test_an_error_between_two_iterations_saves_first(tmp_path, caplog, error, size, is_complete, saved):
    run = FourIterations(tmp_path, Trainer())
    run.world.size = size
    completed = fail_after(run, error, is_complete=is_complete)
    assert run.saved == saved
    assert all(line == (2, {"iteration": 2, "x": 0.5}) for line in completed)
    assert ("iterations 1 to 2 are lost" in caplog.text) == (isinstance(error, Exception) and not saved)


def test_a_checkpoint_that_fails_too_does_not_hide_the_error(tmp_path, caplog, monkeypatch):
    run = FourIterations(tmp_path, Trainer())

    def full():
        raise UserError("No space left on device")

    monkeypatch.setattr(run, "save", full)
    fail_after(run, KeyError("x"))
    assert "iteration 2 could not be saved" in caplog.text
    assert "iterations 1 to 2 are lost" in caplog.text


@pytest.mark.parametrize(
    ("error", "is_trial", "is_left"),
    [(RewardError("r"), False, True), (RewardError("r"), True, False), (UserError("u"), False, False)],
)
def test_the_traceback_of_a_reward_is_left_in_the_run_folder(tmp_path, error, is_trial, is_left):
    with pytest.raises(UserError), failures_recorded(settings(), tmp_path / "run", World(), is_trial):
        raise error
    assert (tmp_path / "run/error.log").is_file() == is_left


def test_a_full_gpu_ends_the_run_with_three_keys_that_help_and_the_way_back(tmp_path):
    for way in ("no checkpoint yet", "iter_000002"):
        with pytest.raises(RunStopped) as stopped, failures_recorded(settings(), tmp_path, World(), False):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        what, rest = str(stopped.value).split("; what helps: ")
        assert what.startswith("the GPU has no memory left")
        *keys, kept = rest.split("; ")
        assert len(keys) == 3
        assert way in kept
        (tmp_path / "checkpoints/iter_000002").mkdir(parents=True, exist_ok=True)


def test_a_run_that_is_stopped_says_which_checkpoint_is_kept(tmp_path):
    for is_trial, words in ((False, "no checkpoint yet"), (False, "iter_000002"), (True, None)):
        with pytest.raises(RunStopped) as stopped, failures_recorded(settings(), tmp_path, World(), is_trial):
            raise RunStopped("iteration 3: nan")
        assert (str(stopped.value) == "iteration 3: nan") is (words is None)
        assert (words or "") in str(stopped.value)
        (tmp_path / "checkpoints/iter_000002").mkdir(parents=True, exist_ok=True)


class Noting(Service):
    def __init__(self, name, wanted, calls):
        self.name, self.wanted, self.calls = name, wanted, calls

    def wants_checkpoint(self, run):
        return self.wanted

    def iteration_ended(self, run, saved):
        self.calls.append((self.name, saved))


@pytest.mark.parametrize(
    ("done", "due", "wanted"),
    [(False, False, False), (True, False, False), (False, True, False), (False, False, True)],
)
def test_an_iteration_is_saved_before_the_last_service_is_told_first(done, due, wanted):
    calls, saved = [], done or due or wanted
    services = [Noting("a", wanted, calls), Noting("b", False, calls)]
    end_iteration(SimpleNamespace(done=done), services, due, lambda: calls.append("saved"))
    assert calls == [*["saved"][:saved], ("b", saved), ("a", saved)]


# -- whole runs


@pytest.mark.slow
def test_a_vec_info_that_fails_costs_no_iteration(run, monkeypatch, capsys):
    monkeypatch.setattr(VecInfoFactory, "classes", dict(VecInfoFactory.classes))
    calls = []

    @VecInfoFactory.register("Third")
    class Third(VecInfo):
        def __call__(self, rollout):
            calls.append(1)
            return {"calls": 1 / (len(calls) != 3)}

    words = ("--max_iterations", "4", "--vec_info_class", "{id: Third}")
    assert run(*words) == 2
    assert "the run ends after iteration 3, which is saved" in capsys.readouterr().err
    assert (RUN / "checkpoints/latest").read_text() == "iter_000003"
    assert [row["iteration"] for row in rows(RUN)] == [1, 2, 3]
    assert run(*words, "--resume") == run(*words, "--experiment_name", "whole") == 0
    assert without_clocks(RUN)[3] == without_clocks(RUN.with_name("whole"))[3]
    assert same(weights(RUN / "agent"), weights(RUN.with_name("whole") / "agent"))
