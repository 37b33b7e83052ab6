"""`python -m experiments.dailydialog` in the process of the test: jobs with processes of their own import torch thirty times."""

import contextlib
import runpy
import sys
import time
from pathlib import Path

import pytest

from benchmarks.tests.inputs import CLASSIFIER
from experiments.dailydialog import jobs
from experiments.dailydialog.command import main
from experiments.dailydialog.jobs import Ended, Job
from rlhf_dialog.commands import dispatcher
from rlhf_dialog.config.registry import RewardFactory
from tests.parts.processes import load_script


class Log:
    """A log whose lines have their times."""

    def __init__(self, file):
        self.file, self.lines, self.open = file, [], ""

    def write(self, text):
        self.file.write(text)
        *whole, self.open = (self.open + text).split("\n")
        self.lines += [(time.monotonic(), line) for line in whole]
        return len(text)

    def flush(self):
        if not self.file.closed:
            self.file.flush()

    def close(self):
        """A handler of another library ends with it."""

    def isatty(self):
        return False


def run_here(some, *_, **__):
    """As `run_jobs`."""
    return {job.name: run_one(job) for job in some if not job.output.exists()}


def run_one(job: Job) -> Ended:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with job.log.open("a") as file, contextlib.redirect_stdout(Log(file)) as log, contextlib.redirect_stderr(log):
        code = call(job.words)
    assert code in job.codes, job.log.read_text()[-3000:]
    return Ended(code, start, time.monotonic(), log.lines)


def call(words):
    kept = sys.argv
    try:
        if words[:2] == ["-m", "rlhf_dialog"]:
            return dispatcher.main(words[2:])
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__")
            return 0
        return load_script(words[0]).main(words[1:])
    finally:
        sys.argv = kept


def run_whole(words: list[str]) -> None:
    """All stages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "run_jobs", run_here)
        # the tests of the benchmark keep it out of the registry
        patch.setitem(RewardFactory.classes, "BenchmarkClassifier", CLASSIFIER)
        assert main(words) == 0


def texts_in(table: str, data: Path) -> list[str]:
    """Turns of the data, of more than two words, that the table shows."""
    files = data.rglob("dialogues_t*.txt")
    turns = {turn.strip() for path in files for turn in path.read_text().split("__eou__")}
    assert len(turns) > 100
    return [turn for turn in turns if len(turn.split()) > 2 and turn in table]
