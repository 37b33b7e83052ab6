"""How the processes of one run speak as one: rank 0 prints, the others wait until it has. It loads no torch."""

import gc
import io
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any

from rlhf_dialog.errors import INTERNAL_ERROR
from rlhf_dialog.terminal import visible

REPORT_TIMEOUT = 20.0  # seconds that the other ranks wait for rank 0 to report an error, before they report their own
NOTICE_TIMEOUT = 3.0  # seconds that rank 0 then waits for them to notice its report
MEETING: dict[str, Any] = {}  # "store": through which the processes met; absent before


def rank() -> int:
    """The number of this process among those that a launcher started; 0 for a single process."""
    return int(os.environ.get("RANK", "0"))


def with_one_voice(run: Callable[[], int]) -> int:
    """Call `run`, which returns an exit code; only rank 0 prints.

    Launchers kill the other processes as soon as one has ended, so a process with an error waits until rank 0 has reported
    it. An error that rank 0 does not know of (outside of `World.fail_together`, or a bug that only this process met) is
    reported by the process that raised it.
    """
    code, leaving = 1, None
    try:
        code = run() if rank() == 0 else _run_silently(run)
    except (SystemExit, KeyboardInterrupt) as end:
        leaving = type(end)(*end.args)  # without the frames that hold the models
    except Exception:
        if "store" not in MEETING:
            raise
        sys.stderr.write(f"rank {rank()} failed:\n{visible(traceback.format_exc())}")
    if rank() == 0 and code and leaving is None:
        _notify_others(code)
    _part()
    if leaving is not None:
        raise leaving
    return code


def _part() -> None:
    """Leave the process group. DDP modules are collected first: the group must not be destroyed inside their destructor."""
    MEETING.clear()
    if "torch" not in sys.modules:
        return
    import torch.distributed as dist

    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def _notify_others(code: int) -> None:
    """Rank 0 has reported why the run ends: wait until the others have noticed, since the store may end with rank 0."""
    store, end = MEETING.get("store"), time.monotonic() + NOTICE_TIMEOUT
    with suppress(RuntimeError):
        if store is not None:
            store.set("reported", str(code))
            while store.add("noticed", 0) < int(os.environ["WORLD_SIZE"]) - 1 and time.monotonic() < end:
                time.sleep(0.05)


def _run_silently(run: Callable[[], int]) -> int:
    stderr_writes, stderr = _LastWrites(), sys.stderr
    try:
        with redirect_stdout(_LastWrites()), redirect_stderr(stderr_writes):
            code = run()
    except Exception:
        stderr.write(f"rank {rank()} failed:\n{visible(traceback.format_exc())}")
        stderr.flush()
        return 1
    if not 0 < code < 128:
        return code
    reported = _reported_by_rank_0()
    if not reported or (code == INTERNAL_ERROR and reported != code):
        stderr.write(f"rank {rank()}: {stderr_writes.writes[-1] if stderr_writes.writes else code}")
        stderr.flush()
    return code


def _reported_by_rank_0() -> int:
    """Wait until rank 0 has reported why the run ends; returns its exit code, 0 when it is gone or takes over REPORT_TIMEOUT."""
    store, end = MEETING.get("store"), time.monotonic() + REPORT_TIMEOUT
    with suppress(RuntimeError):
        while time.monotonic() < end:
            if store is not None and store.check(["reported"]):
                store.add("noticed", 1)
                return int(store.get("reported"))
            time.sleep(0.1)
    return 0


class _LastWrites(io.TextIOBase):
    """A stream that keeps only its last writes."""

    def __init__(self) -> None:
        self.writes: deque[str] = deque(maxlen=20)

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)
