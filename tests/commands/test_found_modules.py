"""Processes that a command starts import nothing from the working directory, whatever modules somebody has put there."""

import ast
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from rlhf_dialog.task_oriented.commands import train_policy
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


@pytest.mark.slow
def test_a_command_that_starts_processes(traps, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    settings = SMALL | {"domain": str(domain_file(tmp_path)), "run_dir": str(tmp_path / "runs"), "process_num": 1}
    (tmp_path / "tea.yaml").write_text(yaml.safe_dump(settings | {"epoch": 1, "batchsz": 20}), encoding="utf-8")
    assert train_policy.main(["--config", str(tmp_path / "tea.yaml")]) == 0
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
