"""A stage of the quickstart runs in the folder that is given, and again only when its code, inputs or command changed."""

import shutil
from pathlib import Path

import pytest
from rich.console import Console

from scripts import quickstart
from scripts.quickstart import Stage

SCRIPT = """
import sys
from pathlib import Path
Path("runs/out").mkdir(parents=True)
with open("log", "a") as log:
    log.write("ran ")
sys.exit(Path("given.txt").read_text() == "broken")
"""
STAGE = Stage("copy", "copy.py --now", (Path("given.txt"),), Path("runs/out"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a stage's script and input; the package is a copy of some of its files."""
    (tmp_path / "work").mkdir()
    for name in ("training/ppo.py", "data/synthetic/desk.yaml"):
        (tmp_path / "package" / name).parent.mkdir(parents=True)
        shutil.copyfile(quickstart.PACKAGE / name, tmp_path / "package" / name)
    monkeypatch.setattr(quickstart, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(quickstart, "STAGES", (STAGE, STAGE))
    (tmp_path / "work/copy.py").write_text(SCRIPT)
    (tmp_path / "work/given.txt").write_text("one")
    return tmp_path / "work"


def times_run(folder, times=2):
    for _ in range(times):
        quickstart.run_stage(STAGE, folder, Console(quiet=True))
    return len((folder / "log").read_text().split())


def test_an_unchanged_stage_is_skipped_until_its_output_is_gone(folder):
    assert times_run(folder) == 1
    assert {path.name for path in folder.iterdir()} == {"copy.py", "given.txt", "log", "runs"}
    shutil.rmtree(folder / "runs/out")
    assert times_run(folder) == 2


@pytest.mark.parametrize(
    "changed", ["work/given.txt", "work/copy.py", "package/training/ppo.py", "package/data/synthetic/desk.yaml"]
)
def test_a_change_of_the_code_the_grammar_or_an_input_runs_it_again(folder, changed):
    assert times_run(folder, 1) == 1
    with (folder.parent / changed).open("a") as file:
        file.write("\n")
    assert times_run(folder) == 2


def test_the_first_stage_that_fails_ends_the_command_and_runs_again_next_time(folder, capsys):
    (folder / "given.txt").write_text("broken")
    assert [quickstart.main(["--folder", str(folder)]) for _ in range(2)] == [1, 1]
    assert "stage 1" in capsys.readouterr().out
    assert times_run(folder, 0) == 2


def test_a_seed_that_a_later_stage_would_refuse_is_refused_before_the_first(folder, capsys):
    assert quickstart.main(["--folder", str(folder), "--seed", "-1"]) == 2
    assert capsys.readouterr().err.startswith("error: --seed: found -1")
    assert not (folder / "log").exists()


def test_another_seed_runs_every_stage_again_but_plot_and_report():
    seeded = [stage.with_seed(3) for stage in quickstart.STAGES]
    assert [stage.command.endswith(" --seed 3") for stage in seeded] == [True] * 8 + [False] * 2
    assert [stage.stamp for stage in seeded] == [stage.stamp for stage in quickstart.STAGES]
    assert quickstart.STAGES[0].with_seed(0) == quickstart.STAGES[0]
