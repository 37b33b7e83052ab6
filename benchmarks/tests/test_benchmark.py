"""scripts/benchmark.py: the workload is W's, the arithmetic of its comparisons, and one run of it from end to end."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import benchmark
from benchmarks.tests.inputs import RATES
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


@pytest.mark.slow
def test_a_run_says_everything(measured):
    found, _, printed = measured
    assert [found[key] for key in ("workload", "size", "critic", "dtype")] == ["W-synthetic", "test", "shared", "fp32"]
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


@pytest.mark.parametrize("share", [True, False])
def test_the_benchmark_refuses_to_measure_another_device_than_it_names(monkeypatch, share):
    trainer = make_trainer(use_share_model=share)
    benchmark.check_device(trainer)
    monkeypatch.setattr("rlhf_dialog.distributed.process_group.pick_device", lambda config: torch.device("cuda"))
    with pytest.raises(RuntimeError, match="the policy is on cpu, but the benchmark measures cuda"):
        benchmark.check_device(trainer)
