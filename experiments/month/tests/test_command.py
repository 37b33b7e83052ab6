"""python -m experiments.month: which stages it makes, what it prints and writes, and the table of the study."""

import json
import statistics

import pytest
import yaml
from rich.console import Console

from experiments.month import command
from experiments.month.command import main, study_table, summary_of
from experiments.month.simulation import MonthKeys
from experiments.month.tests.months import month_keys

ROWS = [
    {"night": 0, "liked": 0.2, "promoted": None},
    {"night": 1, "liked": 0.3, "promoted": True, "within_cap": True},
    {"night": 2, "liked": 0.3, "promoted": False, "within_cap": True},
    {"night": 3, "liked": 0.45, "promoted": True, "within_cap": True},
]
PAIRS = [
    {"seed": i, "alone": 0.5, "troll": 0.5 + difference} for i, difference in enumerate((0.01, -0.02, 0.0, 0.03, -0.01))
]


def test_a_month_from_the_command_line(month_inputs, tmp_path, capsys):
    path = tmp_path / "given.yaml"
    path.write_text(yaml.safe_dump(month_keys(month_inputs, tmp_path / "month")))
    assert main(["--config", str(path), "--nights", "1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "night 1: " in out
    assert "a night without feedback: weights equal (nothing changed: " in out
    written = json.loads((tmp_path / "month" / "month.json").read_text())
    assert [row["night"] for row in written["rows"]] == [0, 1]
    assert written["silent_night"]["equal"]
    assert written["gain"] == pytest.approx(written["rows"][1]["liked"] - written["rows"][0]["liked"])
    assert written["config"]["taste"]["max_words"] == 1
    assert (tmp_path / "month" / "month.png").is_file()
    before = (tmp_path / "month" / "month.jsonl").read_text()
    assert main(["--config", str(path), "--nights", "1"]) == 0  # it is over: nothing is made again
    assert (tmp_path / "month" / "month.jsonl").read_text() == before


def test_the_summary_of_a_month():
    found = summary_of(ROWS)
    assert (found["first"], found["last"], found["promoted"], found["refused"]) == (0.2, 0.45, 2, 1)
    assert found["gain"] == pytest.approx(0.25)
    assert found["troll_within_cap"]
    assert not summary_of([*ROWS, ROWS[-1] | {"within_cap": False}])["troll_within_cap"]


def test_the_interval_of_the_study_is_students_t():
    differences = [pair["troll"] - pair["alone"] for pair in PAIRS]
    half = 2.776 * statistics.stdev(differences) / 5**0.5  # 0.975 quantile with 4 degrees of freedom, from a table
    found = study_table(PAIRS)
    assert found["mean"] == pytest.approx(statistics.mean(differences))
    assert (found["low"], found["high"]) == pytest.approx((found["mean"] - half, found["mean"] + half))


def test_the_study_pairs_months_of_one_seed(monkeypatch, tmp_path, capsys):
    lived = []

    def live(config, console):
        lived.append((config.seed, config.troll_share, config.nights, config.output))
        row = {"liked": 0.4 + 0.01 * config.seed, "within_cap": True}
        rows = [row, row | {"troll_training": config.troll_share / 4, "troll_gate": config.troll_share / 2}]
        return type("Month", (), {"rows": rows})

    monkeypatch.setattr(command, "lived", live)
    (tmp_path / "m_study").mkdir()
    config = MonthKeys(
        agent="a", data_path="d", output=str(tmp_path / "m"), study_seeds=2, study_nights=4, troll_study=True
    )
    command.study(config, Console(quiet=True))
    assert lived == [
        (seed, share, 4, f"{tmp_path}/m_study/seed_{seed}_{name}")
        for seed in (0, 1)
        for share, name in ((0.0, "alone"), (0.4, "troll"))
    ]
    written = json.loads((tmp_path / "m_study" / "study.json").read_text())
    assert (written["mean"], written["largest_training"], written["largest_gate"]) == (0.0, 0.1, 0.2)
