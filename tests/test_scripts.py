"""The scripts that only call a command of the package: each calls the one of its name, and ends with its exit code."""

import importlib
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.parts.processes import ROOT, environment, run_python

SHIMS = {  # script: the command that it calls, `main` where no name is given
    "scripts/audit.py": "rlhf_dialog.commands.audit",
    "scripts/benchmark.py": "benchmarks.benchmark",
    "scripts/benchmark_gpu.py": "benchmarks.gpu",
    "scripts/evaluate.py": "rlhf_dialog.commands.evaluate",
    "scripts/evaluate_policy.py": "rlhf_dialog.task_oriented.commands.evaluate_policy",
    "scripts/plot_run.py": "rlhf_dialog.commands.plot_run",
    "scripts/push_to_hub.py": "rlhf_dialog.commands.push_to_hub",
    "scripts/quickstart.py": "rlhf_dialog.commands.quickstart",
    "scripts/train_policy.py": "rlhf_dialog.task_oriented.commands.train_policy",
    "scripts/train_sft.py": "rlhf_dialog.commands.supervised:train_sft",
    "reward_models/train_intent_classifier.py": "rlhf_dialog.commands.supervised:train_intent_classifier",
    "reward_models/train_preference_model.py": "rlhf_dialog.commands.supervised:train_preference_model",
    "reward_models/train_relevance_model.py": "rlhf_dialog.commands.supervised:train_relevance_model",
}


@pytest.mark.parametrize("path", SHIMS)
def test_a_script_ends_with_the_exit_code_of_its_command(path, monkeypatch):
    given = {}
    module, _, name = SHIMS[path].partition(":")
    monkeypatch.setattr(
        importlib.import_module(module), name or "main", lambda argv=None, **options: given.update(options) or 42
    )
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


@pytest.mark.parametrize("path", ["train_ppo.py", "chat.py", "scripts/evaluate.py"])
def test_without_the_environment_a_script_says_how_to_activate_it(path, tmp_path):
    ran = run_python("-S", ROOT / path, cwd=tmp_path, env=environment(PYTHONPATH=None))  # -S: without site-packages
    assert ran.returncode == 1
    assert ran.stderr.endswith("; first run: source .venv/bin/activate (make quickstart makes it)\n")
    assert "Traceback" not in ran.stderr


def test_a_script_says_how_it_is_called():
    sources = {path: (ROOT / path).read_text(encoding="utf-8") for path in SHIMS}
    assert [path for path, source in sources.items() if f"python {path}" not in source] == []
    assert [path for path, source in sources.items() if len(source.splitlines()) > 18] == []
