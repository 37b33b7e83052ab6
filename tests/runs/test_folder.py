"""The folder of a run: its lock, free or not, what is removed and what is repaired."""

import errno
import fcntl
import os
import socket

import pytest
from safetensors import SafetensorError

from rlhf_dialog.atomic_files import disk_errors_as_user_errors
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs import lock
from rlhf_dialog.runs.folder import (
    Start,
    check_folder,
    check_metrics,
    clear,
    has_begun,
    repair,
)
from rlhf_dialog.runs.lock import LOCK, lock_folder

# -- what is there


def test_a_run_without_a_checkpoint(tmp_path):
    with pytest.raises(UserError, match="contains no checkpoint to resume from; start without --resume"):
        check_folder(tmp_path, False, True, 5)
    (tmp_path / "config.yaml").write_text("")
    check_folder(tmp_path, False, True, 5)
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"iteration": {i}}}\n' for i in range(1, 6)))
    check_folder(tmp_path, False, True, 5)
    with pytest.raises(UserError, match=r"--overwrite, continue it with --resume"):
        check_folder(tmp_path, False, False, 5)
    with pytest.raises(UserError, match="contains a run of 5 iterations, but no checkpoint"):
        check_folder(tmp_path, False, True, 4)
    (tmp_path / "agent").mkdir()
    with pytest.raises(UserError, match="contains a run of 5 iterations, but no checkpoint"):
        check_folder(tmp_path, False, True, 5)


GAPS = {
    "of two branches": ([1, 2, 3, 4, 9, 10], "contains only iterations 1 to 4 without a gap"),
    "twice": ([1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 10], "contains only iterations 1 to 4 without a gap"),
    "only the end": ([9, 10], "does not start with iteration 1"),
    "missing": (None, "is missing"),
}


@pytest.mark.parametrize("gap", GAPS)
def test_metrics_that_do_not_reach_the_checkpoint(tmp_path, gap):
    iterations, said = GAPS[gap]
    if iterations is not None:
        (tmp_path / "metrics.jsonl").write_text("".join(f'{{"iteration": {i}}}\n' for i in iterations))
    with pytest.raises(UserError) as refused:
        check_metrics(tmp_path, tmp_path / "checkpoints/iter_000010")
    assert f"{tmp_path}/metrics.jsonl: {said}, but iter_000010 is of iteration 10; " in str(refused.value)
    assert f"--resume_weights_only {tmp_path}" in str(refused.value)
    check_metrics(tmp_path, tmp_path / "checkpoints/iter_000000")  # of a run that began with other weights


def test_clear_removes_a_run_and_nothing_else(tmp_path):
    (tmp_path / "checkpoints/iter_000001").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/mine").write_text("")
    (tmp_path / "wandb").symlink_to(tmp_path / "elsewhere")
    for name in ("metrics.jsonl", "config.yaml", "notes.txt"):
        (tmp_path / name).write_text("")
    clear(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "notes.txt"}
    assert (tmp_path / "elsewhere/mine").exists()


def test_clear_keeps_what_the_new_run_has_made_already(tmp_path):
    for name in ("wandb/run-old/files", "wandb/run-new/files", "checkpoints"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "wandb_run_id").write_text("old")
    (tmp_path / "wandb/latest-run").symlink_to("run-new")
    clear(tmp_path, kept=tmp_path / "wandb/run-new")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {
        *("wandb", "wandb/run-new", "wandb/run-new/files", "wandb/latest-run")
    }


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "checkpoints", "notes.txt", ".lock"])
def test_a_run_has_begun_where_it_left_a_file(tmp_path, name):
    assert not has_begun(tmp_path)
    (tmp_path / name).write_text("x")
    assert has_begun(tmp_path) == (name not in ("notes.txt", ".lock"))


def test_only_a_run_that_goes_on_has_a_checkpoint_to_continue_from(tmp_path):
    (tmp_path / "checkpoints/iter_000002").mkdir(parents=True)
    assert Start(resume=True).prepare(tmp_path) == tmp_path / "checkpoints/iter_000002"
    assert Start().prepare(tmp_path) is None
    (tmp_path / "more").touch()
    assert Start(overwrite=True).prepare(tmp_path, extra_files=("more",)) is None
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_the_weights_of_another_is_refused_where_a_run_could_be_lost(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old / "checkpoints/iter_000002", new):
        folder.mkdir(parents=True)
    (new / "config.yaml").touch()
    for folder, start, said in (
        (new, Start(weights_from=tmp_path / "absent"), "absent contains no checkpoint"),
        (new, Start(resume=True, weights_from=old), "give one of them"),
        (old, Start(overwrite=True, weights_from=old), "this run's own folder"),
        (old, Start(weights_from=old), "already contains a run"),
    ):
        with pytest.raises(UserError, match=said):
            start.check(folder, 5)
    Start(weights_from=old).check(new, 5)


def test_repair_sweeps_what_kills_left_and_nothing_else(tmp_path):
    (tmp_path / "checkpoints/iter_000002").mkdir(parents=True)
    for name in (
        "checkpoints/.iter_000004.tmp",
        "checkpoints/.iter_000002.old",
        ".best_agent.old",
        ".agent.tmp",
        ".mine.tmp",
    ):
        (tmp_path / name).mkdir()
    for name in ("checkpoints/.latest.tmp", ".metrics.jsonl.tmp", ".config.yaml.tmp"):
        (tmp_path / name).write_text("")
    repair(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"checkpoints", "checkpoints/iter_000002", "best_agent", ".mine.tmp"}


def test_errors_of_the_disk_are_the_users_and_others_are_not(tmp_path):
    with (
        pytest.raises(UserError, match=r"x: cannot be written: No space left on device"),
        disk_errors_as_user_errors(tmp_path / "x"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(UserError, match=r"/y: cannot be written: Read-only file system"),
        disk_errors_as_user_errors(tmp_path),
    ):
        raise OSError(errno.EROFS, "Read-only file system", "/y")
    with pytest.raises(ConnectionError), disk_errors_as_user_errors(tmp_path):
        raise ConnectionError(errno.ECONNRESET, "Connection reset")


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 42944 vs 42836"), True),
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_what_torch_and_safetensors_say_of_a_full_disk(tmp_path, error, is_full):
    with pytest.raises(UserError if is_full else type(error)) as caught, disk_errors_as_user_errors(tmp_path / "x"):
        raise error
    assert not is_full or "x: cannot be written" in str(caught.value)


def test_a_lock_names_its_process_and_goes_with_it(tmp_path):
    folder = tmp_path / "deep/run"
    with lock_folder(folder):
        assert f"process {os.getpid()} on {socket.gethostname()} since 20" in (folder / LOCK).read_text()
        (folder / "metrics.jsonl").write_text("")
        with pytest.raises(UserError, match=f"in use by process {os.getpid()} on"), lock_folder(folder):
            pass
    assert [path.name for path in folder.iterdir()] == ["metrics.jsonl"]
    with pytest.raises(KeyError), lock_folder(tmp_path / "runs/deep/ppo"):
        raise KeyError
    assert not (tmp_path / "runs").exists()  # it had made these folders, and they are empty


def test_a_lock_file_that_a_kill_left_is_replaced_and_a_lock_that_is_held_is_not(tmp_path):
    left = "process 7 on elsewhere since then, and more than this process writes" * 3
    (tmp_path / LOCK).write_text(left)
    with (tmp_path / LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="in use by process 7 on elsewhere since then"), lock_folder(tmp_path):
            pass
        assert (tmp_path / LOCK).read_text() == left
    with lock_folder(tmp_path):
        assert "elsewhere" not in (tmp_path / LOCK).read_text()


def test_the_lock_of_a_later_run_in_the_place_of_a_moved_folder_stays(tmp_path):
    with lock_folder(tmp_path / "ppo"):
        (tmp_path / "ppo").rename(tmp_path / "old")
        (tmp_path / "ppo").mkdir()
        (tmp_path / "ppo" / LOCK).write_text("another")
    assert (tmp_path / "ppo" / LOCK).read_text() == "another"


def test_a_lock_that_another_process_removes_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    seen = []

    def removed_first(handle, path):
        seen.append(handle)
        if len(seen) == 1:
            path.unlink()
        return path.exists() and os.path.samestat(os.fstat(handle), os.stat(path))

    monkeypatch.setattr(lock, "_is_this_file", removed_first)
    with lock_folder(tmp_path):
        assert len(seen) == 2
        assert (tmp_path / LOCK).exists()


def test_a_folder_without_locks_is_used_with_a_warning_and_one_that_cannot_be_written_is_refused(
    tmp_path, monkeypatch, caplog
):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"run_dir: .* cannot be written"), lock_folder(tmp_path / "file"):
        pass
    for number, is_known in ((errno.ENOTSUP, True), (errno.EIO, False)):

        def refuse(*_, number=number):
            raise OSError(number, "no")

        monkeypatch.setattr(lock.fcntl, "flock", refuse)
        if is_known:
            with lock_folder(tmp_path):
                assert "has no locks" in caplog.text
        else:
            with pytest.raises(UserError, match="cannot be written"), lock_folder(tmp_path):
                pass
