"""`rlhf-dialog` in processes that are forked from one that has imported everything, which saves the seconds of a start.

`python -m tests.parts.forked_cli THREADS MODULE ...` is that process: it reads requests, a line of JSON each, and answers with
the id of the new process and, when it has ended, with its exit code.
"""

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.parts.processes import HANGING, environment, start_python

DISK = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "write", "ftruncate")


def kill_at(count: float) -> list[int]:
    """SIGKILL before the `count`th change of the disk by a function of os in this process; all are counted."""
    done = [0]

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            done[0] += 1
            if done[0] == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*args, **options)

        return step

    for name in DISK:
        setattr(os, name, counted(getattr(os, name)))
    return done


def kill_after(names: Sequence[str]) -> None:
    """SIGKILL when a file or folder gets one of these names."""

    def moving(move: Callable[..., Any]) -> Callable[..., Any]:
        def moved(source: Any, target: Any, **options: Any) -> None:
            move(source, target, **options)
            if os.path.basename(target) in names:
                os.kill(os.getpid(), signal.SIGKILL)

        return moved

    os.replace, os.rename = moving(os.replace), moving(os.rename)


def wait_for(event: Callable[[], object], pid: int) -> None:
    """Until `event()` is true, or the process is gone."""
    limit = time.monotonic() + HANGING
    while not event() and Path(f"/proc/{pid}/stat").exists() and time.monotonic() < limit:
        time.sleep(0.001)


class ForkedCLI:
    """Runs commands in a folder, one process at a time; what they write is in the file `said` of the folder."""

    def __init__(self, *modules: str, threads: int = 1):
        """`modules`: those that the commands import; `threads`: of torch in each command."""
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        variables = dict.fromkeys(names, str(threads)) | {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment(**variables)}
        self.process = start_python("-m", "tests.parts.forked_cli", str(threads), *modules, **pipes)
        self.running = False

    def start(
        self, folder: Path, *words: str, step: int | None = None, after: Sequence[str] = (), limit: int | None = None
    ) -> int:
        """Begin; returns the process id. `step`: SIGKILL before so many changes of the disk; `after`: when a file gets one of
        these names; `limit`: bytes of a file."""
        if self.running:
            self.end()  # a test failed before it waited
        request = {"words": words, "folder": str(folder), "step": step, "after": after, "limit": limit}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        self.running = True
        return int(self.process.stdout.readline())

    def end(self) -> int:
        """Wait; returns the exit code, negative for a signal."""
        self.running = False
        return int(self.process.stdout.readline())

    def run(self, folder: Path, *words: str, **options: Any) -> int:
        self.start(folder, *words, **options)
        return self.end()

    def changes_of(self, folder: Path, *words: str) -> int:
        """How often a command that ends well changes the disk."""
        assert self.run(folder, *words, step=-1) == 0, (folder / "said").read_text()
        return int((folder / "said").read_text().rsplit("changes of the disk: ", 1)[1])

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(HANGING)


def serve(threads: int, modules: Sequence[str]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print when they are imported
    for name in ("tests.parts.offline", "rlhf_dialog.commands.dispatcher", *modules):
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        output = os.open(Path(request["folder"]) / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        pid = os.fork()
        if pid == 0:
            os.dup2(output, 1), os.dup2(output, 2)
            _command(threads, **request)
        os.close(output)
        print(pid, file=answers, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers, flush=True)


def _command(
    threads: int, words: list[str], folder: str, step: int | None, after: list[str], limit: int | None
) -> None:
    """In the forked process: run the command and end. A pool of threads does not survive a fork, so they are set here."""
    import torch

    os.chdir(folder)
    torch.set_num_threads(threads)
    done = kill_at(step) if step is not None else None
    if after:
        kill_after(after)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    code = 70
    try:
        code = sys.modules["rlhf_dialog.commands.dispatcher"].main(words)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    if done:
        print("changes of the disk:", done[0], flush=True)
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2:])
