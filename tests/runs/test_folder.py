"""The run folder: free or not, in use or not, and what asks before it is replaced."""

import errno
import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from processes import start_python

from rlhf_dialog.errors import UserError
from rlhf_dialog.runs import folder as run_folder
from rlhf_dialog.runs.folder import (
    LOCK,
    check_folder,
    check_unlocked,
    clear,
    confirm_overwrite,
    disk_errors_told,
    locked,
    mend,
)


def ended_process():
    process = start_python("-c", "")
    process.wait()
    return process.pid


def write_lock(folder, pid, host=None, process_start="1"):
    host = host or socket.gethostname()
    text = json.dumps({"pid": pid, "host": host, "process_start": process_start, "since": "then"})
    (folder / LOCK).write_text(text)


def start_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]


# -- the lock


def test_a_lock_names_its_process_and_goes_with_it(tmp_path):
    folder = tmp_path / "deep/run"
    with locked(folder):
        found = json.loads((folder / LOCK).read_text())
        assert (found["pid"], found["host"]) == (os.getpid(), socket.gethostname())
        assert found["process_start"] == start_of(os.getpid())
        (folder / "metrics.jsonl").write_text("")
        check_unlocked(folder)  # by its own process
    assert [path.name for path in folder.iterdir()] == ["metrics.jsonl"]


def test_a_lock_goes_after_an_error_too_and_an_empty_folder_with_it(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path / "run"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


HOLD = """
import sys
from pathlib import Path
from rlhf_dialog.runs.folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.thorough
def test_another_living_process_is_refused_and_a_killed_one_is_replaced(tmp_path, caplog):
    caplog.set_level("INFO", "rlhf_dialog")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with start_python("-c", HOLD, tmp_path, **pipes) as holder:
        assert holder.stdout.readline() == "held\n"
        before = (tmp_path / LOCK).read_text()
        said = rf"in use by process {holder.pid} on .* since .*; wait for its end, stop it, or choose another name"
        with pytest.raises(UserError, match=said):
            check_unlocked(tmp_path)
        with pytest.raises(UserError, match=said), locked(tmp_path):
            pass
        assert (tmp_path / LOCK).read_text() == before
        holder.kill()
        holder.wait()
        check_unlocked(tmp_path)
        with locked(tmp_path):
            assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
        assert f"process {holder.pid}, which used it since" in caplog.text
        assert "its lock is replaced" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_living_process_without_a_lock_of_the_kernel_is_refused_too(tmp_path):
    write_lock(tmp_path, os.getppid(), process_start=start_of(os.getppid()))
    with pytest.raises(UserError, match=f"in use by process {os.getppid()} "), locked(tmp_path):
        pass
    assert (tmp_path / LOCK).exists()


@pytest.mark.parametrize("reused", [True, False])
def test_a_stale_lock_is_replaced(tmp_path, reused):
    write_lock(tmp_path, os.getppid() if reused else ended_process())
    check_unlocked(tmp_path)
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def test_a_lock_of_another_host_is_refused_with_what_to_do(tmp_path):
    write_lock(tmp_path, ended_process(), host="elsewhere")
    for check in (check_unlocked, lambda folder: locked(folder).__enter__()):
        with pytest.raises(
            UserError, match=r"on elsewhere since then; .* or remove .*\.lock if you know that it is gone"
        ):
            check(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', "\0" * 50])
def test_a_lock_that_a_kill_left_half_written_is_stale(tmp_path, text):
    (tmp_path / LOCK).write_text(text)
    check_unlocked(tmp_path)
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def test_a_lock_that_another_process_removes_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    seen = []

    def removed_first(handle, path):
        seen.append(handle)
        if len(seen) == 1:
            path.unlink()
        return os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path))

    monkeypatch.setattr(run_folder, "_is_this_file", removed_first)
    with locked(tmp_path):
        assert len(seen) == 2
        assert (tmp_path / LOCK).exists()


def test_a_file_system_without_locks_of_the_kernel_is_fine(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(run_folder.fcntl, "flock", refuse)
    with locked(tmp_path):
        pass
    write_lock(tmp_path, os.getppid(), process_start=start_of(os.getppid()))
    with pytest.raises(UserError, match="in use"), locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_locked(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"run_dir: .* cannot be written"), locked(tmp_path / "file"):
        pass


# -- the question before a run is replaced


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("answer", "goes_on"), [("ppo\n", True), (" ppo \n", True), ("y\n", False), ("\n", False), ("", False)]
)
def test_on_a_terminal_the_name_is_typed(tmp_path, monkeypatch, capsys, answer, goes_on):
    (tmp_path / "ppo/checkpoints").mkdir(parents=True)
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    if goes_on:
        confirm_overwrite(tmp_path / "ppo")
    else:
        with pytest.raises(UserError, match="its name was not typed, so nothing was removed"):
            confirm_overwrite(tmp_path / "ppo")
    assert "Type ppo to go on: " in capsys.readouterr().err


def test_nothing_is_asked_without_a_terminal_or_without_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    confirm_overwrite(tmp_path / "absent")
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    confirm_overwrite(tmp_path)
    monkeypatch.setattr(sys, "stdin", None)
    confirm_overwrite(tmp_path)
    assert capsys.readouterr().err == ""


# -- what is there


def test_a_run_without_a_checkpoint(tmp_path):
    with pytest.raises(UserError, match="holds no checkpoint to resume from; start without --resume"):
        check_folder(tmp_path, False, True, 5)
    (tmp_path / "config.yaml").write_text("")
    check_folder(tmp_path, False, True, 5)
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n' * 5)
    check_folder(tmp_path, False, True, 5)
    with pytest.raises(UserError, match=r"--overwrite, continue it with --resume"):
        check_folder(tmp_path, False, False, 5)
    with pytest.raises(UserError, match="holds a run of 5 iterations, but no checkpoint"):
        check_folder(tmp_path, False, True, 4)
    (tmp_path / "agent").mkdir()
    with pytest.raises(UserError, match="holds a run of 5 iterations, but no checkpoint"):
        check_folder(tmp_path, False, True, 5)


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


def test_mend_sweeps_what_kills_left_and_nothing_else(tmp_path):
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
    mend(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"checkpoints", "checkpoints/iter_000002", "best_agent", ".mine.tmp"}


def test_errors_of_the_disk_are_the_users_and_others_are_not(tmp_path):
    with (
        pytest.raises(UserError, match=r"x: cannot be written: No space left on device"),
        disk_errors_told(tmp_path / "x"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(UserError, match=r"/y: cannot be written: Read-only file system"), disk_errors_told(tmp_path):
        raise OSError(errno.EROFS, "Read-only file system", "/y")
    with pytest.raises(ConnectionError), disk_errors_told(tmp_path):
        raise ConnectionError(errno.ECONNRESET, "Connection reset")
