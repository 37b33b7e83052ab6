"""The lock of a run folder: who has it, who is refused, and when it counts as left behind."""

import errno
import json
import os
import socket
import subprocess
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import HANGING, start_python

from rlhf_dialog.errors import UserError
from rlhf_dialog.runs import lock
from rlhf_dialog.runs.lock import LOCK, check_unlocked, locked


def ended_process():
    process = start_python("-c", "")
    process.wait()
    return process.pid


def write_lock(folder, pid, host=None, process_start="1", silence=None):
    """`silence`: seconds since the last heartbeat; None: a lock of an older version, without one."""
    host = host or socket.gethostname()
    content = {"pid": pid, "host": host, "process_start": process_start, "since": "then"}
    beat = {} if silence is None else {"heartbeat": int(time.time()) - silence}
    (folder / LOCK).write_text(json.dumps(content | beat))


def start_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]


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


def test_the_lock_of_a_later_run_in_the_place_of_a_moved_folder_stays(tmp_path):
    with locked(tmp_path / "ppo"):
        (tmp_path / "ppo").rename(tmp_path / "old")
        (tmp_path / "ppo").mkdir()
        write_lock(tmp_path / "ppo", 7, host="pod-2", silence=0)
    assert json.loads((tmp_path / "ppo" / LOCK).read_text())["pid"] == 7


HOLD = """
import sys
from pathlib import Path
from rlhf_dialog.runs.lock import locked
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
        said = rf"in use by process {holder.pid} on .* since .*; wait until it ends, stop it, or choose another name"
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
            UserError, match=r"on elsewhere since then; .* or remove .*\.lock if you know that it has ended"
        ):
            check(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', "\0" * 50])
def test_a_lock_that_a_kill_left_half_written_is_stale(tmp_path, text):
    (tmp_path / LOCK).write_text(text)
    check_unlocked(tmp_path)
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


ODD = {
    "a heartbeat without end": '"pid": 7, "heartbeat": 1e400',
    "a heartbeat of 4,000 digits": f'"pid": 7, "heartbeat": {"1" * 4000}',
    "a heartbeat before the epoch": '"pid": 7, "heartbeat": -1',
    "a process of 22 digits": f'"pid": {2**70}',
    "a process without end": '"pid": 1e400',
    "no process": '"pid": 0',
}


@pytest.mark.parametrize("host", [socket.gethostname(), "pod-1"])
@pytest.mark.parametrize("numbers", ODD)
def test_a_lock_with_impossible_numbers_is_stale(tmp_path, numbers, host):
    text = f'{{"host": "{host}", "process_start": "1", "since": "then", {ODD[numbers]}}}'
    (tmp_path / LOCK).write_text(text)
    check_unlocked(tmp_path)
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def test_a_heartbeat_more_than_ten_minutes_in_the_future_is_stale(tmp_path, caplog):
    caplog.set_level("INFO", "rlhf_dialog")
    write_lock(tmp_path, ended_process(), host="pod-1", silence=-30 * 60 - 30)
    check_unlocked(tmp_path)
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert "on pod-1, which used it since then, has a clock 30 minutes ahead; its lock is replaced" in caplog.text


def test_a_heartbeat_a_little_in_the_future_is_of_a_running_process(tmp_path):
    write_lock(tmp_path, ended_process(), host="pod-1", silence=-100)
    said = r"in use by process \d+ on pod-1 .*heard of 0 s ago.*free in (700|69\d) s: start again then"
    with pytest.raises(UserError, match=said), locked(tmp_path):
        pass


def test_another_host_that_was_heard_of_lately_is_refused_until_then(tmp_path):
    write_lock(tmp_path, ended_process(), host="pod-1", silence=100)
    said = r"in use by process \d+ on pod-1 .*heard of 10\d s ago.*free in (50\d|49\d) s: start again then, or remove .*\.lock"
    for check in (check_unlocked, lambda folder: locked(folder).__enter__()):
        with pytest.raises(UserError, match=said):
            check(tmp_path)


def test_another_host_that_is_silent_for_ten_minutes_is_replaced(tmp_path, caplog):
    """A container or a spot machine comes back under another name after a kill."""
    caplog.set_level("INFO", "rlhf_dialog")
    write_lock(tmp_path, ended_process(), host="pod-1", silence=601)
    check_unlocked(tmp_path)
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert "on pod-1, which used it since then, has been silent for 10 minutes; its lock is replaced" in caplog.text


def test_silence_alone_is_not_enough_without_locks_of_the_kernel(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    write_lock(tmp_path, ended_process(), host="pod-1", silence=6000)
    with pytest.raises(UserError, match=r"on pod-1 .* remove .*\.lock if you know that it has ended"), locked(tmp_path):
        pass


@pytest.mark.thorough
def test_silence_does_not_free_a_folder_whose_kernel_lock_is_held(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with start_python("-c", HOLD, tmp_path, **pipes) as holder:
        assert holder.stdout.readline() == "held\n"
        write_lock(tmp_path, holder.pid, host="pod-1", silence=6000)
        with pytest.raises(UserError, match=f"in use by process {holder.pid} on pod-1"), locked(tmp_path):
            pass
        holder.stdin.close()


def test_the_heart_beats_until_the_lock_goes(tmp_path, monkeypatch):
    beats, written = threading.Semaphore(0), []

    def write(handle, owner):
        written.append(owner.heartbeat)
        os.pwrite(handle, json.dumps(asdict(owner)).encode(), 0)
        beats.release()

    monkeypatch.setattr(lock, "BEAT", 0.001)
    monkeypatch.setattr(lock, "_write", write)
    with locked(tmp_path):
        for _ in range(4):
            assert beats.acquire(timeout=HANGING)
        assert json.loads((tmp_path / LOCK).read_text())["heartbeat"] == written[-1]
    assert time.time() - written[-1] < HANGING
    assert not [one for one in threading.enumerate() if one.name == "heartbeat"]
    assert list(tmp_path.iterdir()) == []


def test_a_heart_stops_when_another_process_has_the_lock(tmp_path):
    write_lock(tmp_path, 7, host="pod-2", silence=0)
    path = tmp_path / LOCK
    before, waits = path.read_bytes(), []
    ended = SimpleNamespace(wait=lambda seconds: waits.append(seconds) or len(waits) > 3)
    handle = os.open(path, os.O_RDWR)
    lock._beat(path, handle, lock.Owner(os.getpid(), "pod-1", "1", "today", 0), ended)
    os.close(handle)
    assert path.read_bytes() == before
    assert waits == [lock.BEAT]  # it did not wait for a second beat


def test_folders_that_were_made_for_the_lock_go_with_it(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path / "runs/deep/ppo"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_another_process_removes_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    seen = []

    def removed_first(handle, path):
        seen.append(handle)
        if len(seen) == 1:
            path.unlink()
        return os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path))

    monkeypatch.setattr(lock, "_is_this_file", removed_first)
    with locked(tmp_path):
        assert len(seen) == 2
        assert (tmp_path / LOCK).exists()


def test_a_file_system_without_locks_of_the_kernel_is_fine(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with locked(tmp_path):
        pass
    write_lock(tmp_path, os.getppid(), process_start=start_of(os.getppid()))
    with pytest.raises(UserError, match="in use"), locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_locked(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"run_dir: .* cannot be written"), locked(tmp_path / "file"):
        pass
