"""The forecast beside a benchmark, and the profile of one iteration."""

import gzip
import json

import pytest
import torch

from benchmarks import benchmark, profile, workload
from tests.parts.trainers import make_trainer

pytestmark = pytest.mark.usefixtures("registered")


def test_a_profile_is_a_table_and_a_trace(tmp_path):
    trainer = make_trainer()
    rows = profile.profiled(trainer, tmp_path)
    assert trainer.iteration == 1
    assert rows[0]["ms"] >= rows[-1]["ms"] > 0
    assert 0.5 < sum(row["share"] for row in rows) <= 1 + 1e-9
    assert {"aten::addmm", "aten::copy_"} <= {row["name"] for row in rows}
    assert "aten::addmm" in (tmp_path / "profile.txt").read_text()
    events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    assert "aten::addmm" in {event.get("name") for event in events}


def test_the_forecast_counts_policy_reference_and_classifier(tmp_path, small_tokenizer):
    options = benchmark.parse(["--size=test", "--device=cpu", "--rollout_batch_size=8", "--minibatch=4"])
    size = workload.SIZES["test"]
    items = [{"prompt": "ba <EOU>", "reference": "ce"}]
    inputs = workload.Inputs("W-synthetic", small_tokenizer, small_tokenizer, items)
    workload.write_files(inputs, size, "gpt2", tmp_path)
    config = workload.run_config(options, tmp_path)
    found = profile.forecast_gib(config, size.classifier, torch.device("cpu")) * 2**30
    judge = sum(p.numel() for p in workload.classifier("test").parameters())
    policy = 512 * 32 + 1024 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32  # embeddings, two layers, the last norm
    least = 4 * (judge + policy * (1 + 3 + 1))  # weights; policy with gradient and two moments; reference
    assert least < found < least + 40 * 2**20
    (tmp_path / "policy" / "config.json").unlink()
    assert profile.forecast_gib(config, size.classifier, torch.device("cpu")) is None
