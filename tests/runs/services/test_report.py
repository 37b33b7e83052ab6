"""The page that a run writes while it trains: when, what it says of the run, and that it ends none."""

import json
import re
from pathlib import Path

import pytest

from rlhf_dialog.errors import RunStopped, SignalExit
from rlhf_dialog.runs.services import report as live_report
from rlhf_dialog.runs.services.ledger import Ledger
from rlhf_dialog.runs.services.report import LiveReport, reason_of

RUN = Path("run_results/ppo")


class Clock:
    """Seconds that pass by hand; a page takes `cost`."""

    def __init__(self):
        self.now, self.cost, self.pages = 100.0, 0.0, []

    def __call__(self):
        return self.now


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """A clock, and a run folder of one iteration, whose pages it notes with their times."""
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1, "objective/score": 0.5}\n')
    clock, real = Clock(), live_report.replace_file

    def replace_file(path, text):
        clock.pages.append(clock.now)
        clock.now += clock.cost
        real(path, text)

    monkeypatch.setattr(live_report, "replace_file", replace_file)
    return clock


def data_of(folder):
    page = (folder / "report.html").read_text(encoding="utf-8")
    return json.loads(re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[0])


def after_seconds(clock, report, *moments):
    for moment in moments:
        clock.now = 100 + moment
        report.write(0.5)


def test_the_first_page_comes_at_once_and_the_next_ones_30_seconds_apart(tmp_path, clock):
    after_seconds(clock, LiveReport(tmp_path, clock), 1, 5, 30.9, 31, 60, 62)
    assert clock.pages == [101, 131, 162]


def test_a_page_that_takes_long_comes_less_often(tmp_path, clock):
    clock.cost = 2.0
    after_seconds(clock, LiveReport(tmp_path, clock), 0, 31, 199, 200, 399, 400)
    assert clock.pages == [100, 300, 500]


def test_it_says_when_the_next_page_is_expected(tmp_path, clock):
    report = LiveReport(tmp_path, clock)
    after_seconds(clock, report, 7)
    live = data_of(tmp_path)["live"]
    assert (live["state"], live["iteration"], live["progress"]) == ("running", 1, 0.5)
    assert (live["every"], live["pause"]) == (30, 30)
    after_seconds(clock, report, 507)  # an iteration of 500 seconds
    assert data_of(tmp_path)["live"]["pause"] == 500


def test_the_last_page_says_how_the_run_ended(tmp_path, clock):
    LiveReport(tmp_path, clock).end(RunStopped("no data"))
    assert clock.pages == []  # before its first iteration a run leaves an older page alone
    report = LiveReport(tmp_path, clock)
    after_seconds(clock, report, 1, 2)
    report.end(RunStopped("iteration 2: nan\nmore"))
    assert clock.pages == [101, 102]
    live = data_of(tmp_path)["live"]
    assert (live["state"], live["why"]) == ("stopped", "iteration 2: nan")
    report.end(None)
    assert data_of(tmp_path)["live"]["state"] == "ended"
    assert reason_of(SignalExit(143)) == reason_of(KeyboardInterrupt()) == "it was asked to by Ctrl-C or a signal"
    assert reason_of(AssertionError()) == "AssertionError"


# -- in a run


@pytest.mark.slow
def test_a_page_or_a_ledger_that_cannot_be_written_ends_no_run(run, monkeypatch, capsys):
    monkeypatch.setattr(live_report, "build_page", lambda *_: 1 / 0)
    monkeypatch.setattr(Ledger, "write", lambda *_: 1 / 0)
    assert run() == 0
    said = capsys.readouterr().err
    assert [said.count(f"warning: {name} has failed") for name in ("report.html", "ledger.jsonl")] == [1, 1]
    assert run("--report", "false", "--experiment_name", "none") == 0
    assert not (RUN.with_name("none") / "report.html").exists()
