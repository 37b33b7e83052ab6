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
REST = "the rest (truncation penalty, environment)"


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
def test_a_run_leaves_a_page_with_its_metrics_and_newest_rows(run):
    assert run("--ledger_texts", "true", "--truncation_penalty", "0.5") == 0
    data = data_of(RUN)
    assert (data["live"]["state"], data["live"]["iteration"], data["live"]["progress"]) == ("ended", 2, 1)
    assert [len(values) for values in data["runs"][0]["curves"].values()] == [2] * len(data["runs"][0]["curves"])
    ledger = [json.loads(line) for line in (RUN / "ledger.jsonl").read_text().splitlines()]
    parts = data["runs"][0]["parts"]
    assert list(parts) == ["length_match", REST]
    for i, rows in enumerate((ledger[:8], ledger[8:])):
        weighted = [row["reward/length_match"] * row["reward/length_match_weight"] for row in rows]
        assert parts["length_match"][i] == pytest.approx(sum(weighted) / 8, rel=1e-5)
        assert parts[REST][i] == pytest.approx(-sum(row["penalty"] for row in rows) / 8, rel=1e-4)
        total = sum(values[i] for values in parts.values())
        assert total == pytest.approx(sum(row["score"] for row in rows) / 8, rel=1e-5)
    columns = data["newest"]["columns"]
    assert columns[:3] == ["prompt", "reply", "score"]
    assert set(columns) == {name for name in rows[0] if not name.startswith("time/") and not name.endswith("_weight")}
    place = columns.index("score")
    assert [row[place] for row in data["newest"]["rows"]] == pytest.approx([row["score"] for row in rows], rel=1e-5)
    assert [row[columns.index("reply")] for row in data["newest"]["rows"]] == [row["reply"] for row in rows]
    shown = [[row["iteration"], row["prompt"][-1], row["reply"]] for row in ledger]
    assert [row[:3] for row in data["replies"]["rows"]] == [shown[i] for i in (0, 2, 5, 8, 10, 13)]
    assert not list(RUN.glob(".*"))


@pytest.mark.slow
def test_a_page_or_a_ledger_that_cannot_be_written_ends_no_run(run, monkeypatch, capsys):
    monkeypatch.setattr(live_report, "build_page", lambda *_: 1 / 0)
    monkeypatch.setattr(Ledger, "write", lambda *_: 1 / 0)
    assert run() == 0
    said = capsys.readouterr().err
    assert [said.count(f"warning: {name} has failed") for name in ("report.html", "ledger.jsonl")] == [1, 1]
    assert run("--report", "false", "--experiment_name", "none") == 0
    assert not (RUN.with_name("none") / "report.html").exists()
