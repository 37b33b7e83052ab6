"""Processes of a stage: each writes its log, a line a minute says how far they are, and all end with this process."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_dialog.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SHARE = re.compile(r"(\d+) of (\d+)|(\d+(?:\.\d+)?) ?%")
TOKENS = re.compile(r"  tokens (\d+)")
LOOK = 0.2  # seconds between two looks at the logs
GRACE = 30.0  # seconds in which a job saves what it has, when it is asked to end
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True)
class Job:
    """A Python process. `words`: what follows the interpreter; `output`: there when it has ended, and it is not run again."""

    name: str
    words: list[str]
    log: Path
    output: Path
    codes: tuple[int, ...] = (0,)  # exit codes of success
    tokens: int | None = None  # that a run of PPO generates in all: its lines say how many it has


@dataclass
class Running:
    """A job at work, and the lines of its log that were seen, each with its time in seconds."""

    job: Job
    process: subprocess.Popen[bytes]
    start: int  # bytes of the log before this process
    lines: list[tuple[float, str]] = field(default_factory=list)
    read: int = 0

    def look(self) -> None:
        """Read what the log has more."""
        with suppress(OSError), self.job.log.open("rb") as file:
            file.seek(self.start + self.read)
            text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self.read += len(whole)
            now = time.monotonic()
            self.lines += [(now, line) for line in whole.decode("utf-8", "replace").splitlines()]

    @property
    def share(self) -> float:
        """How much of the job is done, by the last line that says it."""
        shares = (share_in(line, self.job.tokens) for _, line in reversed(self.lines))
        return next((share for share in shares if share is not None), 0.0)


@dataclass(frozen=True)
class Ended:
    """A job that has ended: exit code, when it started and ended, and its lines with their times, all in seconds."""

    code: int
    start: float
    end: float
    lines: list[tuple[float, str]]


def share_in(line: str, tokens: int | None = None) -> float | None:
    """The share that a line of a log reports: `step 3 of 12`, with `member 2 of 3` before it 5 / 12; `40 %`; of all tokens."""
    if tokens:
        reached = TOKENS.search(line)
        return min(int(reached[1]) / tokens, 1.0) if reached else None
    counts = [(int(part), int(whole)) for part, whole, _ in SHARE.findall(line) if whole and int(whole)]
    if not counts:
        percent = [float(number) for _, _, number in SHARE.findall(line) if number]
        return min(percent[-1] / 100, 1.0) if percent else None
    (part, whole), outer = counts[-1], counts[:-1]
    share = part / whole
    for number, of in reversed(outer if line.startswith("member") else []):
        share = (number - 1 + share) / of
    return min(share, 1.0)


def run_jobs(
    jobs: Sequence[Job], at_once: int = 1, threads: int | None = None, minute: Callable[[float], None] | None = None
) -> dict[str, Ended]:
    """Run the jobs whose output is not there, `at_once` side by side; `minute` gets the share of all, about once a minute.

    threads: of each process; None: as many as the environment says. Raises UserError for a job that fails, with
    the last line of its log, after the others were ended.
    """
    waiting, running = [job for job in jobs if not job.output.exists()], list[Running]()
    finished, done, total = dict[str, Ended](), len(jobs) - len(waiting), max(len(jobs), 1)
    starts, looked = dict[str, float](), time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                starts[job.name] = time.monotonic()
                running.append(_start(job, threads))
            time.sleep(LOOK)
            for one in list(running):
                one.look()
                if one.process.poll() is not None:
                    one.look()
                    running.remove(one)
                    finished[one.job.name] = _ended(one, starts[one.job.name])
                    done += 1
            if minute and time.monotonic() - looked >= 60:
                looked = time.monotonic()
                minute((done + sum(one.share for one in running)) / total)
    finally:
        _end([one.process for one in running])
    return finished


def _start(job: Job, threads: int | None) -> Running:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    settings = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths)}
    settings |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
    with job.log.open("ab") as log:
        start = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", *job.words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | settings,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends them
            preexec_fn=_die_with_parent,
        )
    return Running(job, process, start)


def _die_with_parent() -> None:
    """Where the kernel is Linux, a kill of the parent, which it cannot notice, ends this process too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)


def _ended(one: Running, start: float) -> Ended:
    code = one.process.returncode
    if code not in one.job.codes:
        last = next((line for _, line in reversed(one.lines) if line.strip()), "it has written nothing")
        raise UserError(f"{one.job.name}: ended with exit code {code}; {one.job.log} ends with: {last.strip():.300}")
    return Ended(code, start, time.monotonic(), one.lines)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ask the processes to save and end; kill those that have not after GRACE."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
