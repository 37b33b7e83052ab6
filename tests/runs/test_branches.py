"""Going back to an older checkpoint: what is put aside, and a kill before any change of the disk."""

import json
import os

import pytest
from folders import contents, names

from rlhf_dialog import UserError
from rlhf_dialog.runs.branches import check_metrics, chosen_checkpoint, leave_later
from rlhf_dialog.runs.folder import repair


def make_checkpoints(folder, *iterations, latest, best=None):
    for i in iterations:
        (folder / f"checkpoints/iter_{i:06d}").mkdir(parents=True)
        (folder / f"checkpoints/iter_{i:06d}/trainer.json").write_text(str(i))
    (folder / "checkpoints/latest").write_text(f"iter_{latest:06d}")
    for name in ("agent", "best_agent"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(name)
    if best is not None:
        (folder / "checkpoints/best").write_text(f"iter_{best:06d}")
    (folder / "metrics.jsonl").write_text("".join(f'{{"iteration": {i}}}\n' for i in range(1, max(iterations) + 1)))


def test_the_beginning_of_a_run_with_other_weights_needs_no_metrics(tmp_path):
    make_checkpoints(tmp_path, 0, latest=0)
    (tmp_path / "metrics.jsonl").unlink()
    check_metrics(tmp_path, tmp_path / "checkpoints/iter_000000")


def test_checkpoints_go_by_number_not_by_name(tmp_path):
    make_checkpoints(tmp_path, 999_999, 1_000_000, latest=1_000_000)
    (tmp_path / "checkpoints/iter_000003.copy").mkdir()
    (tmp_path / "checkpoints/latest").unlink()
    newest = tmp_path / "checkpoints/iter_1000000"
    assert chosen_checkpoint(tmp_path / "checkpoints", None) == newest
    assert chosen_checkpoint(tmp_path / "checkpoints", "1000000") == newest
    with pytest.raises(UserError, match=r"choose one of iter_999999, iter_1000000$"):
        chosen_checkpoint(tmp_path / "checkpoints", "3")


class Killed(BaseException):
    """Nothing catches it, and nothing is tidied up behind it that a kill would not leave."""


def kill_before(monkeypatch, count):
    """Raise Killed before the `count`th change of the disk."""
    done = [0]

    def counted(real):
        def step(*args, **options):
            done[0] += 1
            if done[0] == count:
                raise Killed
            return real(*args, **options)

        return step

    for name in ("rename", "replace", "unlink", "mkdir", "fsync"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    return done


@pytest.mark.parametrize("best", [None, 4])
def test_a_kill_before_any_change_of_going_back(tmp_path, monkeypatch, best):
    def go_back(folder, state):
        repair(folder)
        leave_later(folder, folder / "checkpoints/iter_000002", state)

    state = {"validation": {"best": {"iteration": 1}}}

    def begin(name):
        make_checkpoints(tmp_path / name, 1, 2, 4, 6, latest=6, best=best)
        (tmp_path / name / "checkpoints/abandoned/iter_000004").mkdir(parents=True)
        return tmp_path / name

    whole = begin("whole")
    with monkeypatch.context() as patch:
        steps = kill_before(patch, -1)
        go_back(whole, state)
    assert steps[0] >= 10
    if best:
        assert (whole / "checkpoints/best").read_text() == "iter_000001"
    assert names(whole / "checkpoints") - {"best"} == {"latest", "abandoned", "iter_000001", "iter_000002"}
    assert (whole / "best_agent").exists() == (best is None)
    tail = whole / "checkpoints/abandoned/metrics_after_iter_000002.jsonl"
    assert [json.loads(line)["iteration"] for line in tail.read_text().splitlines()] == [3, 4, 5, 6]
    assert {"agent", "iter_000004", "iter_000004.2", "iter_000006"} < names(tail.parent)
    for step in range(1, steps[0] + 1):
        folder = begin(str(step))
        with monkeypatch.context() as patch:
            kill_before(patch, step)
            with pytest.raises(Killed):
                go_back(folder, state)
        go_back(folder, state)
        assert contents(folder) == contents(whole), step


def test_a_number_of_five_thousand_digits_is_not_a_checkpoint(tmp_path):
    make_checkpoints(tmp_path, 1, latest=1)
    with pytest.raises(UserError, match=r"--resume_from: '9+' is not a checkpoint in .*; choose one of iter_000001$"):
        chosen_checkpoint(tmp_path / "checkpoints", "9" * 5000)
