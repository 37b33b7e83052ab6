"""The stages: their order, what is skipped, and the seconds of one that was stopped."""

import pytest

from experiments.dailydialog import record, stages
from experiments.dailydialog.scene import Scene
from experiments.dailydialog.stages import NAMES, STAGES, Stage, run_stage
from rlhf_dialog.errors import UserError


@pytest.fixture
def scene(tmp_path):
    (tmp_path / "data").mkdir()
    return Scene(tmp_path / "data", tmp_path / "work", "tiny", None, print)


def test_a_stage_needs_only_earlier_ones():
    for number, stage in enumerate(STAGES):
        assert set(stage.needs) <= set(NAMES[:number]), stage.name


def test_a_stage_runs_once_and_again_when_what_it_needs_changed(scene):
    ran = []
    first = Stage("first", "", (), lambda _: {"a": 1}, lambda _: ran.append("first"))
    second = Stage("second", "", ("first",), lambda _: {}, lambda _: ran.append("second"))
    with pytest.raises(UserError, match="the stage first is not done"):
        run_stage(second, scene)
    assert [run_stage(one, scene) for one in (first, second, first, second)] == [False, False, True, True]
    assert ran == ["first", "second"]
    record.forget(scene.work, ["first"])
    changed = Stage("first", "", (), lambda _: {"a": 2}, lambda _: ran.append("first"))
    run_stage(changed, scene)
    with pytest.raises(UserError, match=r"needs\.first was .*--again second"):
        run_stage(second, scene)


def test_the_seconds_before_a_stop_count(scene, monkeypatch):
    class Watch:
        seconds = 10.0

    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "Stopwatch", Watch)
    with pytest.raises(KeyboardInterrupt):
        run_stage(Stage("one", "", (), lambda _: {}, stopped), scene)
    assert not (scene.work / "one" / record.DONE).exists()
    run_stage(Stage("one", "", (), lambda _: {}, lambda _: None), scene)
    assert record.done(scene.work / "one")["seconds"] == 20.0
