"""`report.html` of a run that trains: written again while it goes on, and a last time when it ends. Rank 0 writes it."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rlhf_dialog.atomic_files import replace_file
from rlhf_dialog.errors import SignalExit
from rlhf_dialog.evaluation.run_page.page import Live, State, build_page
from rlhf_dialog.runs.optional_outputs import OptionalOutputs
from rlhf_dialog.runs.run_reader import read_run
from rlhf_dialog.runs.services.base import Metrics, Run, Service

REPORT = "report.html"
EVERY = 30.0  # seconds between two writings, at least
SHARE = 100  # times the seconds of a writing pass before the next one: it costs at most 1 % of the time
MAX_REASON = 300  # letters


class ReportService(Service):
    """Writes the page after an iteration, where it is time, and at the end."""

    def __init__(self, wanted: bool):
        self.wanted, self.output = wanted, OptionalOutputs()

    def begin(self, run: Run) -> None:
        if self.wanted and run.world.is_main:
            self.output.add(REPORT, lambda: LiveReport(run.folder))

    def after_iteration(self, run: Run, metrics: Metrics) -> Metrics:
        self.output.use(REPORT, lambda report: report.write(run.progress))
        return {}

    def end(self, error: BaseException | None) -> None:
        self.output.use(REPORT, lambda report: report.end(error))


class LiveReport:
    """The page of the run in `folder`, first after its first iteration; `clock` counts seconds from anywhere."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic):
        self.folder, self.clock = folder, clock
        self.progress = 0.0
        self.due = -math.inf
        self.last = clock()  # the end of the last iteration
        self.longest = 0.0  # seconds of an iteration
        self.cost = 0.0  # seconds of the last writing

    def write(self, progress: float) -> None:
        """After an iteration: write the page if it is time. Raises UserError for a full disk, and damaged files of the run."""
        now = self.clock()
        self.progress, self.longest, self.last = progress, max(self.longest, now - self.last), now
        if now < self.due:
            return
        self._write("running")
        self.cost = self.clock() - now
        self.due = now + max(EVERY, SHARE * self.cost)

    def end(self, error: BaseException | None) -> None:
        """Write the page a last time; it says what the run ends with. Raises UserError as `write` does."""
        if error is None or self.due > -math.inf:  # without an iteration there is nothing to show of an error
            self._write("ended" if error is None else "stopped", "" if error is None else reason_of(error))

    def _write(self, state: State, why: str = "") -> None:
        record = read_run(self.folder)
        pause = max(EVERY, self.longest, SHARE * self.cost)
        live = Live(state, record.rows[-1]["iteration"], self.progress, time.time(), EVERY, pause, why)
        replace_file(self.folder / REPORT, build_page([replace(record, live=live)]))

    def close(self) -> None:
        """Nothing is open."""


def reason_of(error: BaseException) -> str:
    """What stopped a run, in a few words: the first line of the error."""
    if isinstance(error, KeyboardInterrupt | SignalExit):
        return "it was asked to by Ctrl-C or a signal"
    return (str(error).strip() or type(error).__name__).splitlines()[0][:MAX_REASON]
