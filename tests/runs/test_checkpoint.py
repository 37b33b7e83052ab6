"""Checkpoints: a resumed run gives the same numbers bit for bit, and a broken write leaves the old one whole."""

import json
import os

import pytest
import yaml

from rlhf_dialog.config.loading import load_config
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs import checkpoint, training_state
from rlhf_dialog.runs.checkpoint import newest_checkpoint
from rlhf_dialog.runs.training_state import CheckpointExtras, save_training
from tests.parts.saving import build, modules, resume, save, steps
from tests.parts.trainers import make_trainer

# -- what is written


@pytest.mark.slow
def test_files_of_a_checkpoint(tmp_path):
    trainer = build("separate critic")
    trainer.step()
    assert save(trainer, tmp_path / "checkpoints") == tmp_path / "checkpoints/iter_000001"
    assert (tmp_path / "checkpoints/latest").read_text() == "iter_000001"
    found = {str(path.relative_to(tmp_path / "checkpoints")) for path in tmp_path.rglob("*") if path.is_file()}
    names = ["config.yaml", "trainer.json", "random.safetensors"]
    names += [f"{m}{kind}.safetensors" for m in ("policy", "critic") for kind in ("", "_optimizer")]
    assert found == {"latest", *(f"iter_000001/{name}" for name in names)}
    state = json.loads((tmp_path / "checkpoints/iter_000001/trainer.json").read_text())
    assert state["format_version"] == 1
    assert state["iteration"] == 1
    assert load_config(tmp_path / "checkpoints/iter_000001/config.yaml").model_dump() == {
        **trainer.config.model_dump(),
        "experiment_name": "config",
    }
    assert yaml.safe_load((tmp_path / "checkpoints/iter_000001/config.yaml").read_text())["lr"] == 3e-3


@pytest.mark.slow
def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path):
    trainer, kept = make_trainer(keep_checkpoints=2, ppo_epoch=1), (2, 4, 10)
    for iteration in (1, 2, 4, 10):
        trainer.iteration = iteration
        state = trainer.state_dict()
        best = iteration <= 2
        save_training(tmp_path, trainer.config, state, modules(trainer), trainer.optimizers, CheckpointExtras(best))
        assert (tmp_path / "best").read_text() == f"iter_{min(iteration, 2):06d}"
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "best", *(f"iter_{i:06d}" for i in kept)}


@pytest.mark.slow
def test_housekeeping_leaves_later_checkpoints_and_the_new_one_alone(tmp_path):
    trainer = make_trainer(keep_checkpoints=2, ppo_epoch=1)
    for name in ("iter_000010", "iter_000012", "iter_000014", "iter_000001.copy"):
        (tmp_path / name).mkdir()
    for iteration in (1, 2, 3, 4):
        trainer.iteration = iteration
        save(trainer, tmp_path)
    kept = {"iter_000003", "iter_000004", "iter_000010", "iter_000012", "iter_000014", "iter_000001.copy"}
    assert {path.name for path in tmp_path.iterdir()} == {"latest", *kept}


# -- broken writes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "error"),
    [
        (training_state, "save_file", OSError("No space left on device")),
        (checkpoint, "write_json", OSError("No space left on device")),
    ],
)
def test_an_interrupted_write_leaves_the_old_checkpoint_whole(tmp_path, monkeypatch, module, name, error):
    trainer = build("shared trunk")
    steps(trainer, 1)
    save(trainer, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    steps(trainer, 1)

    def full(*_args, **_options):
        raise error

    monkeypatch.setattr(module, name, full)
    with pytest.raises(UserError, match=r"iter_000002: cannot be written: "):
        save(trainer, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "iter_000001"}
    assert resume("shared trunk", tmp_path).iteration == 1


# -- what is refused


@pytest.mark.slow
def test_a_checkpoint_of_another_kind_of_run(tmp_path):
    save(build("separate critic"), tmp_path)
    with pytest.raises(UserError, match=r"has optimizers of \['critic', 'policy'\], but this run has \['policy'\]"):
        resume("shared trunk", tmp_path)
    save(build("without critic"), tmp_path)
    with pytest.raises(UserError, match="does not fit this run"):
        resume("shared trunk", tmp_path)  # no value head in it


@pytest.mark.slow
def test_a_damaged_checkpoint(tmp_path):
    trainer = build("shared trunk")
    steps(trainer, 1)
    saved = save(trainer, tmp_path)
    for name in ("trainer.json", "policy.safetensors", "policy_optimizer.safetensors", "random.safetensors"):
        path, whole = saved / name, (saved / name).read_bytes()
        path.write_bytes(whole[:-20])
        with pytest.raises(UserError, match="iter_000001"):
            resume("shared trunk", tmp_path)
        path.unlink()
        with pytest.raises(UserError, match="iter_000001"):
            resume("shared trunk", tmp_path)
        path.write_bytes(whole)
    assert resume("shared trunk", tmp_path).iteration == 1


# -- names that lead elsewhere, and kills in the moment of a swap


@pytest.mark.slow
def test_a_pointer_that_leaves_the_folder_is_refused(tmp_path):
    trainer = build("shared trunk")
    save_training(
        tmp_path,
        trainer.config,
        trainer.state_dict(),
        modules(trainer),
        trainer.optimizers,
        CheckpointExtras(best=True),
    )
    for text in ("../elsewhere", "/etc", "iter_000001/..", "", "iter_000001\n../x", "\0"):
        for pointer, read in (("latest", newest_checkpoint), ("best", checkpoint.best_checkpoint)):
            (tmp_path / pointer).write_text(text)
            with pytest.raises(UserError, match=rf"{pointer}: names .*not a checkpoint of this folder"):
                read(tmp_path)


@pytest.mark.slow
def test_a_pointer_may_not_be_a_link_out_of_the_folder_or_a_pipe(tmp_path):
    folder = tmp_path / "checkpoints"
    save(build("shared trunk"), folder)
    (tmp_path / "name").write_text("iter_000000")
    for target in ("../name", "../absent"):
        (folder / "latest").unlink()
        (folder / "latest").symlink_to(target)
        with pytest.raises(UserError, match="latest: is a link"):
            newest_checkpoint(folder)
    (folder / "latest").unlink()
    os.mkfifo(folder / "latest")
    with pytest.raises(UserError, match="latest: is a pipe"):
        newest_checkpoint(folder)


@pytest.mark.slow
def test_a_checkpoint_of_links_is_refused(tmp_path):
    saved = save(build("shared trunk"), tmp_path / "checkpoints")
    for path in (saved, *(saved / name for name in ("policy.safetensors", "trainer.json", "random.safetensors"))):
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(UserError, match=r"is a link out of"):
            resume("shared trunk", tmp_path / "checkpoints")
        path.unlink()
        (tmp_path / "elsewhere").rename(path)


def killed_before_its_pointer(folder, monkeypatch):
    """Iteration 1 is saved, and iteration 2 but for `latest`."""
    trainer = build("shared trunk")
    steps(trainer, 1)
    save(trainer, folder)
    steps(trainer, 1)

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "replace_text", kill)
        with pytest.raises(KeyboardInterrupt):
            save(trainer, folder)
    assert (folder / "latest").read_text() == "iter_000001"
    assert (folder / "iter_000002").is_dir()


@pytest.mark.slow
def test_a_save_that_was_killed_before_its_pointer_is_finished(tmp_path, monkeypatch):
    killed_before_its_pointer(tmp_path, monkeypatch)
    checkpoint.finish_saving(tmp_path)
    assert (tmp_path / "latest").read_text() == "iter_000002"
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "iter_000001", "iter_000002"}
    assert not list(tmp_path.rglob("unannounced"))
    assert resume("shared trunk", tmp_path).iteration == 2


@pytest.mark.slow
def test_a_pointer_that_was_changed_since_the_kill_stays(tmp_path, monkeypatch):
    killed_before_its_pointer(tmp_path, monkeypatch)
    (tmp_path / "iter_000001").rename(tmp_path / "iter_000000")
    (tmp_path / "latest").write_text("iter_000000")
    checkpoint.finish_saving(tmp_path)
    assert (tmp_path / "latest").read_text() == "iter_000000"
    assert not list(tmp_path.rglob("unannounced"))


@pytest.mark.slow
def test_a_state_that_is_none_of_this_checkpoint_is_the_users_error(tmp_path):
    path = save(build("shared trunk"), tmp_path) / "trainer.json"
    (tmp_path / "latest").unlink()  # a kill came before it was written: the last checkpoint counts
    whole = json.loads(path.read_text())
    states = [[], {}, {"format_version": 1}, {"format_version": 1, "optimizers": 3}, None, 7]
    for state in (*states, whole | {"format_version": 2}, whole | {"iteration": 4}):
        path.write_text(json.dumps(state))
        with pytest.raises(UserError, match="iter_000000"):
            resume("shared trunk", tmp_path)
    path.write_text(json.dumps(whole))
    assert resume("shared trunk", tmp_path).iteration == 0


# -- the folder alone


def write(folder, iteration, best_iteration=None, best=False, **state):
    """A checkpoint without tensors; two are kept."""
    validation = {"validation": {"best": {"iteration": best_iteration}}} if best_iteration is not None else {}
    return checkpoint.save_checkpoint(
        folder, {"iteration": iteration} | validation | state, lambda _: {"x": 1}, 2, best
    )


def names_in(folder):
    return sorted(path.name.removeprefix("iter_0000") for path in folder.iterdir())


def test_the_newest_the_best_those_of_the_guard_and_later_ones_are_kept(tmp_path):
    for iteration in (1, 2, 4, 10):
        write(tmp_path, iteration, min(iteration, 2), best=iteration <= 2)
    assert (names_in(tmp_path), (tmp_path / "best").read_text()) == (
        ["02", "04", "10", "best", "latest"],
        "iter_000002",
    )
    (tmp_path / "iter_000020").mkdir()
    write(tmp_path, 12, 2, guard={"protected": [5]})  # the newest up to 5 is 4
    assert names_in(tmp_path) == ["02", "04", "10", "12", "20", "best", "latest"]
    write(tmp_path, 13, 2)
    assert names_in(tmp_path) == ["02", "12", "13", "20", "best", "latest"]
    (tmp_path / "best").write_text("?")
    write(tmp_path, 14)  # without a record, nobody knows which one is the best
    assert names_in(tmp_path) == ["02", "12", "13", "14", "20", "best", "latest"]


def test_the_pointer_to_the_best_is_that_of_the_record(tmp_path, caplog):
    for iteration in (1, 2):
        write(tmp_path, iteration)
    assert checkpoint.repair_best(tmp_path, {"iteration": 2}) is None
    for best, state, wanted in (
        ("iter_000001", {"iteration": 2, "validation": {"best": {"iteration": 1}}}, "iter_000001"),
        ("iter_000002", {"iteration": 2, "validation": {"best": {"iteration": 1}}}, "iter_000001"),
        (
            "iter_000002",
            {"iteration": 1, "validation": {"best": {"iteration": 1}}},
            "iter_000002",
        ),  # may be marked later
        ("iter_000001", {"iteration": 2, "validation": {"best": {"iteration": 7}}}, "iter_000001"),  # it does not exist
    ):
        (tmp_path / "best").write_text(best)
        assert checkpoint.repair_best(tmp_path, state) == tmp_path / wanted
        assert (tmp_path / "best").read_text() == wanted
    assert [record.getMessage().count("names iter_000002") for record in caplog.records] == [1]
    checkpoint.restore_best(tmp_path, 2)
    assert (tmp_path / "best").read_text() == "iter_000002"
    checkpoint.restore_best(tmp_path, -1)
    checkpoint.restore_best(tmp_path, 7)
    assert not (tmp_path / "best").exists()
    assert [record.getMessage().count("iteration 7") for record in caplog.records] == [0, 1]


def test_a_kill_before_the_pointer_is_made_good_unless_it_has_changed_since(tmp_path):
    write(tmp_path, 1)
    second = write(tmp_path, 2)
    for latest, before, wanted in (("iter_000001", "iter_000001", "iter_000002"), ("iter_000001", "", "iter_000001")):
        (tmp_path / "latest").write_text(latest)
        (second / checkpoint.UNANNOUNCED).write_text(before)
        checkpoint.finish_saving(tmp_path)
        assert newest_checkpoint(tmp_path) == tmp_path / wanted
        assert not (second / checkpoint.UNANNOUNCED).exists()
    (tmp_path / "latest").unlink()
    assert newest_checkpoint(tmp_path) == second
    assert checkpoint.newest_up_to(tmp_path, 1) == tmp_path / "iter_000001"


@pytest.mark.parametrize(
    ("change", "said"),
    [({"format_version": 2}, "format version 2"), ({"iteration": 4}, "rename"), ({"iteration": "1"}, "")],
)
def test_a_state_of_another_format_or_iteration(tmp_path, change, said):
    path = write(tmp_path, 1) / "trainer.json"
    state = json.loads(path.read_text())
    assert checkpoint.read_state(tmp_path) == (tmp_path / "iter_000001", state)
    assert (state["format_version"], state["x"]) == (1, 1)
    path.write_text(json.dumps(state | change))
    with pytest.raises(UserError, match=f"iter_000001.*{said}"):
        checkpoint.read_state(tmp_path)
