"""The lock of a run folder: who has it, who is refused, and when it counts as left behind."""

import errno
import fcntl
import json
import os
import socket
import subprocess

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.runs import lock
from rlhf_dialog.runs.lock import LOCK, check_unlocked, lock_folder
from tests.parts.processes import start_python


def ended_process():
    process = start_python("-c", "")
    process.wait()
    return process.pid


def write_lock(folder, pid, host=None):
    content = {"pid": pid, "host": host or socket.gethostname(), "since": "then"}
    (folder / LOCK).write_text(json.dumps(content))


@pytest.fixture
def held(tmp_path):
    """Another holder of the kernel's lock, which calls itself process 7 on `elsewhere`."""
    write_lock(tmp_path, 7, host="elsewhere")
    with (tmp_path / LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield tmp_path


def test_a_lock_names_its_process_and_goes_with_it(tmp_path):
    folder = tmp_path / "deep/run"
    with lock_folder(folder):
        found = json.loads((folder / LOCK).read_text())
        assert (found["pid"], found["host"]) == (os.getpid(), socket.gethostname())
        (folder / "metrics.jsonl").write_text("")
        check_unlocked(folder)  # by its own process
    assert [path.name for path in folder.iterdir()] == ["metrics.jsonl"]
    with pytest.raises(KeyError), lock_folder(tmp_path / "runs/deep/ppo"):
        raise KeyError
    assert not (tmp_path / "runs").exists()  # it had made these folders, and they are empty


def test_the_lock_of_a_later_run_in_the_place_of_a_moved_folder_stays(tmp_path):
    with lock_folder(tmp_path / "ppo"):
        (tmp_path / "ppo").rename(tmp_path / "old")
        (tmp_path / "ppo").mkdir()
        write_lock(tmp_path / "ppo", 7, host="pod-2")
    assert json.loads((tmp_path / "ppo" / LOCK).read_text())["pid"] == 7


@pytest.mark.parametrize("text", ["ended", "elsewhere", "", "[]", '{"pid": 1}', "\0" * 50])
def test_a_stale_or_half_written_lock_is_replaced(tmp_path, text):
    if text in ("ended", "elsewhere"):
        write_lock(tmp_path, ended_process(), text if text == "elsewhere" else None)
    else:
        (tmp_path / LOCK).write_text(text)
    check_unlocked(tmp_path)
    with lock_folder(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


HOLD = """
import sys
from pathlib import Path
from rlhf_dialog.runs.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_another_living_process_is_refused_and_a_killed_one_is_replaced(tmp_path, caplog):
    caplog.set_level("INFO", "rlhf_dialog")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with start_python("-c", HOLD, tmp_path, **pipes) as holder:
        assert holder.stdout.readline() == "held\n"
        before = (tmp_path / LOCK).read_text()
        said = rf"in use by process {holder.pid} on .* since .*; wait until it ends, stop it, or choose another name"
        with pytest.raises(UserError, match=said):
            check_unlocked(tmp_path)
        with pytest.raises(UserError, match=said), lock_folder(tmp_path):
            pass
        assert (tmp_path / LOCK).read_text() == before
        holder.kill()
        holder.wait()
        check_unlocked(tmp_path)
        with lock_folder(tmp_path):
            assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
        assert f"process {holder.pid}, which used it since" in caplog.text
        assert "its lock is replaced" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_another_host_is_refused_with_what_to_do(held):
    for check in (check_unlocked, lambda folder: lock_folder(folder).__enter__()):
        with pytest.raises(
            UserError, match=r"process 7 on elsewhere since then; .* or remove .*\.lock if you know that it has ended"
        ):
            check(held)


def test_a_lock_that_another_process_removes_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    seen = []

    def removed_first(handle, path):
        seen.append(handle)
        if len(seen) == 1:
            path.unlink()
        return os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path))

    monkeypatch.setattr(lock, "_is_this_file", removed_first)
    with lock_folder(tmp_path):
        assert len(seen) == 2
        assert (tmp_path / LOCK).exists()


def test_without_locks_of_the_kernel_a_file_that_a_kill_left_is_removed_by_hand(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with lock_folder(tmp_path):
        pass
    write_lock(tmp_path, ended_process())
    with (
        pytest.raises(UserError, match=r"in use .* remove .*\.lock if you know that it has ended"),
        lock_folder(tmp_path),
    ):
        pass


def test_a_folder_that_cannot_be_locked(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"run_dir: .* cannot be written"), lock_folder(tmp_path / "file"):
        pass
