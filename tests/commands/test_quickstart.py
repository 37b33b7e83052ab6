"""A stage runs in the folder that is given, and again only when its code, its inputs or its command changed."""

import shutil
from pathlib import Path

import pytest
from rich.console import Console

from rlhf_dialog.commands import quickstart
from rlhf_dialog.commands.quickstart import Stage
from rlhf_dialog.errors import UserError

SCRIPT = """
import sys
from pathlib import Path
Path("runs/out").mkdir(parents=True)
Path("runs/out/text").write_text(Path("given.txt").read_text())
with open("log", "a") as log:
    log.write("ran ")
sys.exit(Path("given.txt").read_text() == "broken")
"""
STAGE = Stage("copy", "copy.py --now", (Path("given.txt"),), Path("runs/out"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a stage's script and input; the package is a copy, and the working directory another one."""
    (tmp_path / "work").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.copytree(quickstart.PACKAGE, tmp_path / "package", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(quickstart, "PACKAGE", tmp_path / "package")
    (tmp_path / "work/copy.py").write_text(SCRIPT)
    (tmp_path / "work/given.txt").write_text("one")
    return tmp_path / "work"


def run(folder: Path) -> int:
    return quickstart.run_stage(STAGE, folder, Console(quiet=True))


def times_run(folder: Path) -> int:
    return len((folder / "log").read_text().split())


def test_an_unchanged_stage_is_skipped(folder):
    assert [run(folder), run(folder)] == [0, 0]
    assert times_run(folder) == 1
    assert {path.name for path in folder.iterdir()} == {"copy.py", "given.txt", "log", "runs"}
    assert list((folder.parent / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    "changed", ["work/given.txt", "work/copy.py", "package/training/ppo.py", "package/data/synthetic/desk.yaml"]
)
def test_a_change_of_the_code_the_grammar_or_an_input_runs_it_again(folder, changed):
    assert run(folder) == 0
    with (folder.parent / changed).open("a") as file:
        file.write("\n")
    assert run(folder) == 0
    assert times_run(folder) == 2


def test_another_seed_runs_every_stage_again_but_the_plot(folder):
    """The stages of the quickstart with a seed are the same ones, so that their outputs and stamps take the place of the old."""
    seeded = [stage.with_seed(3) for stage in quickstart.STAGES]
    assert [stage.command.endswith(" --seed 3") for stage in seeded] == [True] * 8 + [False]
    assert [stage.stamp for stage in seeded] == [stage.stamp for stage in quickstart.STAGES]
    assert quickstart.STAGES[0].with_seed(0) == quickstart.STAGES[0]


def test_the_budget_of_all_stages_is_five_minutes():
    assert sum(stage.budget for stage in quickstart.STAGES) == 300


def test_the_seconds_of_a_stage_are_kept_beside_its_stamp(folder, monkeypatch):
    monkeypatch.setattr(quickstart, "STAGES", (STAGE, quickstart.STAGES[0]))
    assert run(folder) == 0
    ((title, seconds, budget),) = quickstart.read_stage_seconds(folder)
    assert (title, budget) == ("copy", STAGE.budget)
    assert 0 < seconds < 600


@pytest.mark.parametrize("text", ["", "[]", '{"fingerprint": "x"}'])
def test_a_damaged_stamp_runs_it_again(folder, text, monkeypatch):
    monkeypatch.setattr(quickstart, "STAGES", (STAGE,))
    assert run(folder) == 0
    (folder / STAGE.stamp).write_text(text)
    assert quickstart.read_stage_seconds(folder) == []
    assert run(folder) == 0
    assert times_run(folder) == 2


@pytest.mark.parametrize("text", ["{", '[{"last_turn": "Hi ."}]'])
def test_damaged_samples_are_named(folder, text):
    (folder / quickstart.RUN).mkdir(parents=True)
    (folder / quickstart.RUN / "samples.json").write_text(text)
    with pytest.raises(UserError, match=r"samples\.json: is damaged: .*; remove .* and begin again"):
        quickstart.show_samples(folder, Console(quiet=True))


def test_a_missing_output_runs_it_again(folder):
    assert run(folder) == 0
    shutil.rmtree(folder / "runs/out")
    assert run(folder) == 0
    assert times_run(folder) == 2


def test_a_stage_that_fails_is_not_skipped_next_time(folder):
    (folder / "given.txt").write_text("broken")
    assert [run(folder), run(folder)] == [1, 1]
    assert times_run(folder) == 2


@pytest.mark.slow
def test_it_says_where_the_page_about_the_run_is_and_fails_nothing_without_one(tmp_path, capsys):
    quickstart.write_page(tmp_path, Console())
    assert capsys.readouterr().out == ""  # there is no run
    run_folder = tmp_path / quickstart.RUN
    run_folder.mkdir(parents=True)
    (run_folder / "metrics.jsonl").write_text('{"iteration": 1, "objective/score": 0.5}\n')
    quickstart.write_page(tmp_path, Console())
    assert capsys.readouterr().out == f"\nis the curve right? open {run_folder}/report.html\n"
    assert (run_folder / "report.html").is_file()


def test_the_command_ends_with_the_first_stage_that_fails(folder, monkeypatch, capsys):
    monkeypatch.setattr(quickstart, "STAGES", (STAGE, STAGE))
    (folder / "given.txt").write_text("broken")
    assert quickstart.main(["--folder", str(folder)]) == 1
    assert "stage 1 ended with exit code 1" in capsys.readouterr().out
    assert times_run(folder) == 1


def test_the_time_left_is_that_of_the_budgets_or_longer():
    budgets = [stage.budget for stage in quickstart.STAGES]
    assert quickstart.seconds_left(0, 0.0) == sum(budgets)
    assert quickstart.seconds_left(4, 2.0 * sum(budgets[:4])) == pytest.approx(2 * sum(budgets[4:]))
    assert quickstart.seconds_left(4, 0.1) == sum(budgets[4:])  # skipped
    assert quickstart.seconds_left(len(budgets), 100.0) == 0
