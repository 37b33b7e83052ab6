"""Inputs of the benchmark and a result by hand: fixtures."""

import pytest

from benchmarks import benchmark
from benchmarks import workload as workload
from rlhf_dialog.config.registry import RewardFactory

RATES = {"fp32_gflops": 100.0, "bf16_gflops": 400.0, "copy_gb_per_s": 10.0}
CLASSIFIER = RewardFactory.classes.pop("BenchmarkClassifier")


@pytest.fixture
def registered(monkeypatch):
    """The command's reward is registered in these tests alone."""
    monkeypatch.setitem(RewardFactory.classes, "BenchmarkClassifier", CLASSIFIER)


@pytest.fixture(scope="module")
def tokenizer():
    return workload.made_up_tokenizer(8192)


@pytest.fixture(scope="module")
def small_tokenizer():
    return workload.made_up_tokenizer(512)


def result(**changes) -> dict:
    """A result with round numbers, as far as a comparison reads it."""
    work = benchmark.work_of(benchmark.parse(["--size=test", "--device=cpu"]))
    numbers = {"tokens_per_s": 60.0, "seconds_per_iteration": 4.0, "calibration": dict(RATES)}
    phases = {"rollout": 1.0, "reference": None, "update": 2.0}
    return {**work, **numbers, "phases": phases, "classifier_dtype": "fp32", "set": {}, **changes}


def error_of(capsys, *words: str) -> str:
    """The message of a command that ends with exit code 2, without a traceback."""
    assert benchmark.main(list(words)) == 2
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return text
