"""Processes that a command starts import nothing from the working directory, whatever modules somebody has put there."""

import ast
import gc
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from experiments.dailydialog.jobs import Job
from experiments.dailydialog.jobs import run_jobs as run_stages
from experiments.policies_table.jobs import run_jobs
from experiments.smollm2.parts import PARTS
from experiments.smollm2.wheels import downloaded
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.commands import train_policy
from rlhf_dialog.terminal import Console
from scripts import quickstart
from tests.parts.policy_runs import SMALL, domain_file
from tests.parts.processes import ROOT, run_python

INSTALLED = ("pip", "torch", "numpy", "transformers", "rlhf_dialog", "experiments", "benchmarks", "sitecustomize")


@pytest.fixture
def traps(tmp_path, monkeypatch):
    """The file that a module of the working directory writes its name to when it is imported; there is one of each name."""
    folder, ran = tmp_path / "here", tmp_path / "ran"
    folder.mkdir()
    for name in (*sys.stdlib_module_names, *INSTALLED):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"print({name!r}, file=open({str(ran)!r}, 'a'))")
        (folder / name / "__main__.py").write_text("")
    monkeypatch.chdir(folder)
    return ran


def test_the_traps_work(traps):
    run_python("-m", "pip", "--version", cwd=Path.cwd(), env={**os.environ, "PYTHONPATH": ""})
    assert traps.exists()


def policy_run(tmp_path):
    settings = SMALL | {"domain": str(domain_file(tmp_path)), "run_dir": str(tmp_path / "runs"), "process_num": 1}
    (tmp_path / "tea.yaml").write_text(yaml.safe_dump(settings | {"epoch": 1, "batchsz": 20}), encoding="utf-8")
    assert train_policy.main(["--config", str(tmp_path / "tea.yaml")]) == 0


def table_of_policies(tmp_path):
    assert list(run_jobs([("one", gc.enable)], 1)) == [("one", None)]


def stage_of_the_quickstart(tmp_path):
    stage = quickstart.Stage("settings", "-m rlhf_dialog --help", (), Path("runs/out"))
    assert quickstart.run_stage(stage, Path.cwd(), Console()) == 0


def stage_of_dailydialog(tmp_path):
    for number, module in enumerate(("rlhf_dialog", "experiments.dailydialog")):
        log = tmp_path / f"{number}.log"
        run_stages([Job("help", ["-m", module, "--help"], log, tmp_path / "out")])
        assert "usage" in log.read_text()


def fetched_part(tmp_path):
    with pytest.raises(UserError, match=r"cannot be downloaded: Could not find a version"):
        downloaded(next(iter(PARTS.values())), tmp_path / "cache")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [policy_run, table_of_policies, stage_of_the_quickstart, stage_of_dailydialog, fetched_part],
)
def test_a_command_that_starts_processes(command, traps, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    command(tmp_path)
    assert not traps.exists(), Counter(traps.read_text().split())


def test_every_python_that_is_started_has_the_option():
    """Wherever the interpreter is named first in a list, the option is next; a build must find its own folder."""
    started_ones = {}
    for place in ("rlhf_dialog", "experiments", "benchmarks", "scripts"):
        for path in (ROOT / place).rglob("*.py"):
            if "tests" not in path.parts and "sys.executable" in (source := path.read_text(encoding="utf-8")):
                for node in ast.walk(ast.parse(source)):
                    if isinstance(node, ast.List) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
                        started_ones[f"{path.relative_to(ROOT)}:{node.lineno}"] = ast.unparse(node.elts[1])
    assert len(started_ones) >= 10
    others = [place for place, option in started_ones.items() if option != "'-P'"]
    assert [place.partition(":")[0] for place in others] == ["scripts/check_wheel.py"]
