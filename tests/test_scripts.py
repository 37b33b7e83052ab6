"""The scripts that only call a command of the package: each ends with the exit code of the command of its name."""

import importlib
import runpy

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
    "scripts/train_policy.py": "rlhf_dialog.task_oriented.commands.train_policy",
    "scripts/train_sft.py": "rlhf_dialog.commands.supervised:train_sft",
    "reward_models/train_intent_classifier.py": "rlhf_dialog.commands.supervised:train_intent_classifier",
    "reward_models/train_preference_model.py": "rlhf_dialog.commands.supervised:train_preference_model",
    "reward_models/train_relevance_model.py": "rlhf_dialog.commands.supervised:train_relevance_model",
}


@pytest.mark.parametrize("path", SHIMS)
def test_a_script_ends_with_the_exit_code_of_its_command(path, monkeypatch):
    module, _, name = SHIMS[path].partition(":")
    monkeypatch.setattr(importlib.import_module(module), name or "main", lambda argv=None: 42)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / path), run_name="__main__")
    assert end.value.code == 42


def test_without_the_environment_a_script_says_how_to_activate_it(tmp_path):
    ran = run_python(
        "-S", ROOT / "train_ppo.py", cwd=tmp_path, env=environment(PYTHONPATH=None)
    )  # without site-packages
    assert ran.returncode == 1
    assert "source .venv/bin/activate" in ran.stderr
    assert "Traceback" not in ran.stderr
