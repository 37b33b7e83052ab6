"""What stages share."""

import os

import pytest

from experiments.dailydialog import scene as module
from experiments.dailydialog.scene import Scene
from rlhf_dialog.errors import UserError


def test_pretrained_models_are_those_that_are_there(tmp_path):
    (tmp_path / "fetched/minilm").mkdir(parents=True)
    made = Scene(tmp_path, tmp_path / "work", "tiny", tmp_path / "fetched", print)
    assert made.judges() == {"smollm2": False, "minilm": True}
    assert Scene(tmp_path, tmp_path / "work", "tiny", None, print).judges() == {"smollm2": False, "minilm": False}


def test_without_an_estimate_there_is_no_plan(tmp_path):
    with pytest.raises(UserError, match="the stage estimate is not done"):
        _ = Scene(tmp_path, tmp_path / "work", "tiny", None, print).plan


@pytest.mark.parametrize(
    ("count", "side_by_side", "asked"), [(2, True, (2, 1)), (1, True, (1, None)), (8, False, (1, None))]
)
def test_two_jobs_have_a_core_each_where_there_are_two(tmp_path, monkeypatch, count, side_by_side, asked):
    given = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)
    monkeypatch.setattr(
        module.jobs, "run_jobs", lambda some, at_once, threads, minute: given.append((at_once, threads))
    )
    Scene(tmp_path, tmp_path, "tiny", None, print).run([], side_by_side)
    assert given == [asked]
