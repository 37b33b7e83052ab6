"""A stage of the quickstart runs in the folder that is given, and again only when its code, inputs or command changed."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from scripts import quickstart
from scripts.quickstart import Stage

STAGE = Stage("copy", "-m copy --now", (Path("given.txt"),), Path("runs/out"))
BESIDE = Stage("count", "-m count", (), Path("runs/counted"))


def command(module, **_):
    """In place of a module: writes what it was told and its threads, into its output, the log and what it prints."""
    words = [module, *sys.argv[1:]]
    line = f"{' '.join(words)}: {torch.get_num_threads()}"
    with open("log", "a") as log:
        log.write(f"{line}\n")
    print(line)
    Path("runs/out" if words[0] == "copy" else "runs/counted").mkdir(parents=True)
    sys.exit(int(words[0] == "copy" and Path("given.txt").read_text() == "broken"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a stage's input; the package is a copy of some of its files."""
    (tmp_path / "work").mkdir()
    for name in ("training/ppo.py", "data/synthetic/desk.yaml"):
        (tmp_path / "package" / name).parent.mkdir(parents=True)
        shutil.copyfile(quickstart.PACKAGE / name, tmp_path / "package" / name)
    monkeypatch.setattr(quickstart, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(quickstart, "ROUNDS", ((STAGE, BESIDE), (STAGE,)))
    monkeypatch.setattr(quickstart, "load_libraries", lambda: None)
    monkeypatch.setattr(quickstart.runpy, "run_module", command)
    (tmp_path / "work/given.txt").write_text("one")
    return tmp_path / "work"


def lines_after(folder, *rounds):
    """The lines of all commands so far, once these rounds have run."""
    for stages in rounds:
        assert quickstart.run_stages(stages, folder, Console(quiet=True)) == 0
    return (folder / "log").read_text().splitlines()


def test_an_unchanged_stage_is_skipped_until_its_output_is_gone(folder):
    assert len(lines_after(folder, [STAGE], [STAGE])) == 1
    assert {path.name for path in folder.iterdir()} == {"given.txt", "log", "runs"}
    shutil.rmtree(folder / "runs/out")
    assert len(lines_after(folder, [STAGE])) == 2


@pytest.mark.parametrize("changed", ["work/given.txt", "package/training/ppo.py", "package/data/synthetic/desk.yaml"])
def test_a_change_of_the_code_the_grammar_or_an_input_runs_it_again(folder, changed):
    assert len(lines_after(folder, [STAGE])) == 1
    with (folder.parent / changed).open("a") as file:
        file.write("\n")
    assert len(lines_after(folder, [STAGE])) == 2


def test_stages_side_by_side_have_one_thread_each_and_print_one_after_the_other(folder, capfd, monkeypatch):
    monkeypatch.setattr(quickstart, "ROUNDS", ((STAGE, BESIDE),))
    monkeypatch.setattr(quickstart, "samples_table", lambda path: "")
    assert quickstart.main(["--folder", str(folder), "--seed", "3"]) == 0
    expected = {"copy --now --seed 3: 1", "count --seed 3: 1"}
    assert set(lines_after(folder)) == expected
    assert capfd.readouterr().out.count("count --seed 3: 1") == 1
    assert len(lines_after(folder, [STAGE.with_seed(3), BESIDE.with_seed(3)])) == 2


def test_the_first_stage_that_fails_ends_the_command_and_runs_again_next_time(folder, capfd):
    (folder / "given.txt").write_text("broken")
    assert [quickstart.main(["--folder", str(folder)]) for _ in range(2)] == [1, 1]
    assert "copy: ended with exit code 1" in capfd.readouterr().out
    assert sorted(line.split()[0] for line in lines_after(folder)) == ["copy", "copy", "count:"]


def test_a_seed_that_a_later_stage_would_refuse_is_refused_before_the_first(folder, capsys):
    assert quickstart.main(["--folder", str(folder), "--seed", "-1"]) == 2
    assert capsys.readouterr().err.startswith("error: --seed: found -1")
    assert not (folder / "log").exists()


def test_another_seed_runs_every_stage_again_but_plot_and_report():
    stages = [stage for stages in quickstart.ROUNDS for stage in stages]
    seeded = {stage.title for stage in stages if stage.with_seed(3).command == f"{stage.command} --seed 3"}
    assert {stage.title for stage in stages} - seeded == {"plot", "report with the comparison"}
    assert [stage.with_seed(3).stamp for stage in stages] == [stage.stamp for stage in stages]
    assert stages[0].with_seed(0) == stages[0]
