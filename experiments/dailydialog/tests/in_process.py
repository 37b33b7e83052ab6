"""`python -m experiments.dailydialog` in the process of the test: jobs with processes of their own import torch thirty times."""

import contextlib
import runpy
import sys
from pathlib import Path

import pytest

from benchmarks.tests.inputs import CLASSIFIER
from experiments.dailydialog import measuring, training
from experiments.dailydialog.command import main
from experiments.dailydialog.pretrained import choosing
from experiments.dailydialog.pretrained import measuring as pretrained_measuring
from experiments.dailydialog.pretrained import training as pretrained_training
from rlhf_dialog.commands import dispatcher
from rlhf_dialog.config.registry import RewardFactory
from tests.parts.processes import load_script


def run_here(some, *_, **__):
    """As `run_jobs`."""
    for job in some:
        if not job.output.exists():
            job.log.parent.mkdir(parents=True, exist_ok=True)
            with job.log.open("a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
                code = call(job.words)
            assert code in job.codes, job.log.read_text()[-3000:]


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


def run_whole(words: list[str], run_jobs=run_here) -> None:
    """All stages."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (measuring, training, choosing, pretrained_measuring, pretrained_training):
            patch.setattr(module, "run_jobs", run_jobs)
        # the tests of the benchmark keep it out of the registry
        patch.setitem(RewardFactory.classes, "BenchmarkClassifier", CLASSIFIER)
        assert main(words) == 0


def texts_in(table: str, data: Path) -> list[str]:
    """Turns of the data, of more than two words, that the table shows."""
    files = data.rglob("dialogues_t*.txt")
    turns = {turn.strip() for path in files for turn in path.read_text().split("__eou__")}
    assert len(turns) > 100
    return [turn for turn in turns if len(turn.split()) > 2 and turn in table]
