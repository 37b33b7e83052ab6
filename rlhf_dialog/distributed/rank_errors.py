"""How the processes of one run speak as one: rank 0 prints, the others wait until it has. It loads no torch."""

import gc
import io
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any

from rlhf_dialog.errors import INTERNAL_ERROR

REPORT_TIMEOUT = 20.0  # seconds that the other ranks wait for rank 0 to report an error, before they report their own
NOTICE_TIMEOUT = 3.0  # seconds that rank 0 then waits for them to notice its report
MEETING: dict[str, Any] = {}  # "store": through which the processes met; absent before


def rank() -> int:
    """The number of this process among those that a launcher started; 0 for a single process."""
    return int(os.environ.get("RANK", "0"))


def with_one_voice(run: Callable[..., int], *given: Any) -> int:
    """Call `run(*given)`, which reports its errors and returns an exit code; only rank 0 prints. Then leave the process group.

    Launchers kill the other processes as soon as one has ended, so a process with an error waits until rank 0 has reported
    it. An error that rank 0 does not know of (outside of `World.fail_together`, or a bug that only this process met) is
    reported by the process that raised it.
    """
    code, leaving = 0, None
    try:
        code = run(*given) if rank() == 0 else _run_silently(run, *given)
        if rank() == 0 and code:
            _notify_others(code)
    except (SystemExit, KeyboardInterrupt) as end:
        leaving = type(end)(*end.args)  # without the frames that hold the models
    MEETING.clear()
    if "torch" in sys.modules:
        import torch.distributed as dist

        if dist.is_initialized():
            gc.collect()  # the group must not be destroyed inside the destructor of a DDP module
            dist.destroy_process_group()
    if leaving is not None:
        raise leaving
    return code


def _notify_others(code: int) -> None:
    """Rank 0 has reported why the run ends: wait until the others have noticed, since the store may end with rank 0."""
    store, end = MEETING.get("store"), time.monotonic() + NOTICE_TIMEOUT
    with suppress(RuntimeError):
        if store is not None:
            store.set("reported", str(code))
            while store.add("noticed", 0) < int(os.environ["WORLD_SIZE"]) - 1 and time.monotonic() < end:
                time.sleep(0.05)


def _run_silently(run: Callable[..., int], *given: Any) -> int:
    with redirect_stdout(_LastWrite()), redirect_stderr(_LastWrite()) as stderr:
        code = run(*given)
    if not 0 < code < 128:
        return code
    reported = _reported_by_rank_0()
    if not reported or (code == INTERNAL_ERROR and reported != code):
        sys.stderr.write(f"rank {rank()}: {stderr.text or code}")
    return code


def _reported_by_rank_0() -> int:
    """Wait until rank 0 has reported why the run ends; returns its exit code, 0 when it is gone or takes over REPORT_TIMEOUT."""
    store, end = MEETING.get("store"), time.monotonic() + REPORT_TIMEOUT
    reported = 0
    with suppress(RuntimeError):
        while not reported and time.monotonic() < end:
            if store is not None and store.check(["reported"]):
                reported = int(store.get("reported"))
                store.add("noticed", 1)  # rank 0 waits for it, and may hold the store
            else:
                time.sleep(0.1)
    return reported


class _LastWrite(io.TextIOBase):
    """A stream that keeps only what was written last."""

    text = ""

    def write(self, text: str) -> int:
        self.text = text
        return len(text)
