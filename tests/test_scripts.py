"""The scripts that only call a command of the package: each calls the one of its name, and ends with its exit code."""

import importlib
import re
import runpy
import sys
from pathlib import Path

import pytest
from processes import ROOT

SHIMS = [
    "scripts/benchmark.py",
    "scripts/benchmark_gpu.py",
    "scripts/benchmark_policies.py",
    "scripts/compare_users.py",
    "scripts/evaluate.py",
    "scripts/evaluate_policy.py",
    "scripts/month.py",
    "scripts/plot_run.py",
    "scripts/push_to_hub.py",
    "scripts/quickstart.py",
    "scripts/train_policy.py",
    "scripts/train_sft.py",
    "scripts/write_dialogues.py",
    "reward_models/train_intent_classifier.py",
    "reward_models/train_preference_model.py",
    "reward_models/train_relevance_model.py",
]


@pytest.mark.parametrize("path", SHIMS)
def test_a_script_ends_with_the_exit_code_of_its_command(path, monkeypatch):
    given = {}
    command = importlib.import_module(f"rlhf_dialog.commands.{Path(path).stem}")
    monkeypatch.setattr(command, "main", lambda argv=None, **options: given.update(options) or 42)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / path), run_name="__main__")
    assert end.value.code == 42
    assert given == ({"folder": ROOT} if path.endswith("quickstart.py") else {})


@pytest.mark.parametrize("path", SHIMS)
def test_a_script_reads_its_own_command_line(path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [path, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / path), run_name="__main__")
    assert end.value.code == 0
    assert re.search(rf"usage: .*{Path(path).name}", capsys.readouterr().out)


def test_a_script_says_how_it_is_called():
    sources = {path: (ROOT / path).read_text(encoding="utf-8") for path in SHIMS}
    assert [path for path, source in sources.items() if f"python {path}" not in source] == []
    assert [path for path, source in sources.items() if len(source.splitlines()) > 15] == []
