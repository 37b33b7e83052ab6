"""scripts/benchmark.py: the workload is W's, the arithmetic of its comparisons, and one run of it from end to end."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import benchmark, machine, versions
from benchmarks.tests.inputs import RATES, error_of
from tests.parts.processes import ROOT, output_of
from tests.parts.trainers import make_trainer

pytestmark = pytest.mark.usefixtures("registered")

SCRIPT = ROOT / "scripts" / "benchmark.py"
FEW = ["--rollout_batch_size=8", "--minibatch=4", "--epochs=1", "--iterations=2", "--max_new_tokens=5", "--device=cpu"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[dict, Path, str]:
    """A run of the command: its JSON, where that lies, and what was printed."""
    path = tmp_path_factory.mktemp("benchmark") / "out.json"
    printed = output_of(SCRIPT, "--size=test", *FEW, "--set=lr=0.00002", f"--json={path}")
    return json.loads(path.read_text(encoding="utf-8")), path, printed


# the workload


# the command


def test_the_commit_is_this_projects_own(monkeypatch):
    """Installed somewhere inside another repository, the package has none."""
    monkeypatch.setattr(versions, "ROOT", versions.ROOT / "tests")
    assert versions.versions()["commit"] is None


@pytest.mark.slow
def test_a_run_says_everything(measured):
    found, _, printed = measured
    assert (found["workload"], found["size"], found["critic"], found["dtype"]) == (
        "W-synthetic",
        "test",
        "shared",
        "fp32",
    )
    assert [row["tokens"] for row in found["iterations"]] == [8 * 5]  # no response ends early
    assert found["tokens_per_s"] == pytest.approx(40 / found["seconds_per_iteration"])
    phases = found["phases"]
    assert {"generation", "reference", "forward", "backward", "optimizer", "rest"} <= phases.keys()
    assert all(phases[name] > 0 for name in ("rollout", "reward", "update", "reward_classifier"))
    assert found["memory"]["peak_gib"] > found["memory"]["above_imports_gib"] > 0
    assert all(found["calibration"][name] > 0 for name in RATES)
    assert found["update"]["least_gflop"] > 0
    assert {"python", "torch", "transformers", "rlhf_dialog", "commit"} == found["versions"].keys()
    assert {"cpu", "cores", "threads", "memory_gib", "gpu"} <= found["machine"].keys()
    assert len(found["load"]["before"]) == len(found["load"]["after"]) == 3
    assert (found["set"], found["arguments"]["epochs"]) == ({"lr": 2e-5}, "1")
    assert "W-synthetic test gpt2, shared critic, fp32" in printed
    assert "whole iteration" in printed


@pytest.mark.slow
def test_other_architectures_and_a_separate_critic_beside_a_baseline(measured, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "calibrate", lambda device: dict(RATES))
    base = {**measured[0], "architecture": "llama", "critic": "separate"}
    (tmp_path / "base.json").write_text(json.dumps(base), encoding="utf-8")
    words = ["--size=test", *FEW, "--architecture=llama", "--critic=separate", f"--json={tmp_path / 'out.json'}"]
    assert benchmark.main([*words, f"--compare={tmp_path / 'base.json'}"]) == 0
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert found["compare"]["tokens_per_s"] > 0
    assert found["compare"]["phases"]["update"] > 0
    assert "ratio to the baseline" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--iterations=1"], "--iterations: found 1, wanted at least 2"),
        (["--pairs=0"], "--pairs: found 0"),
        (["--rollout_batch_size=10", "--minibatch=4"], "cannot be divided into minibatches"),
        (["--w_data=nowhere"], "choose the folder that the workload's prepare.py wrote"),
        (["--size=test", "--w_data=nowhere"], "leave it out"),
        (["--set=use_amp=true"], "use the option --dtype instead"),
        (["--set=nonsense=1"], "nonsense: unknown key"),
        (["--set=lr=no"], "lr: "),
        (["--compare=nowhere.json"], "--compare nowhere.json: is not a result of this script"),
        (["--json=nowhere/out.json"], "cannot be written"),
        (["--device=cuda"], "no CUDA device"),
    ],
)
def test_what_cannot_work_is_said_at_once(words, message, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert message in error_of(capsys, *words)


def test_a_setting_needs_a_value(capsys):
    with pytest.raises(SystemExit) as stopped:
        benchmark.main(["--set", "lr"])
    assert stopped.value.code == 2
    assert "wanted KEY=VALUE" in capsys.readouterr().err


def test_help_tells_how_to_compare(capsys):
    with pytest.raises(SystemExit) as stopped:
        benchmark.main(["--help"])
    assert stopped.value.code == 0
    assert "do not compare seconds" in capsys.readouterr().out


# its arithmetic


def test_speed_is_all_tokens_over_all_seconds_after_the_first_iteration():
    laps = [benchmark.Lap(ended, tokens, [], [], 0.0) for ended, tokens in ((5.0, 7), (7.0, 100), (11.0, 80))]
    later = {"time/update": 0.5, "time/generation": 0.8, "objective/kl": 9.0}
    rows = [{"time/rollout": 9.0}, {"time/rollout": 1.0, **later}, {"time/rollout": 2.0, **later, "time/update": 1.5}]
    found = benchmark.speeds(laps, rows)
    assert found["tokens_per_s"] == pytest.approx(180 / 6)
    assert (found["seconds_per_iteration"], found["tokens_per_iteration"]) == (3.0, 90.0)
    assert (found["phases"]["rollout"], found["phases"]["update"], found["phases"]["rest"]) == (1.5, 1.0, 0.5)
    assert (found["phases"]["generation"], found["phases"]["reference"]) == (0.8, None)
    shown = ["rollout", "  generation", "reward", "update", "rest"]
    assert [name for name, _ in benchmark.in_order(found["phases"])] == shown


# a peer


@pytest.mark.parametrize("share", [True, False])
def test_the_benchmark_refuses_to_measure_another_device_than_it_names(monkeypatch, share):
    trainer = make_trainer(use_share_model=share)
    benchmark.check_device(trainer)
    monkeypatch.setattr("rlhf_dialog.distributed.process_group.pick_device", lambda config: torch.device("cuda"))
    with pytest.raises(RuntimeError, match="the policy is on cpu, but the benchmark measures cuda"):
        benchmark.check_device(trainer)
