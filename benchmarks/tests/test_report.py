"""The summary of results, from numbers that are easy to follow."""

from benchmarks.report import summary

MEASURED = {
    **{"workload": "W-synthetic", "size": "base", "critic": "shared", "dtype": "bf16", "device": "cuda"},
    **{"rollout_batch_size": 64, "max_new_tokens": 20, "tokens_per_s": 4321.4, "seconds_per_iteration": 0.25},
    "phases": {"rollout": 0.125, "reward": 0.01, "update": 0.115},
    "update": {"share_of_matmul": 0.125},
    "memory": {"forecast_gib": 6.0, "cuda_gib": 5.0, "above_imports_gib": 1.0},
    "calibration": {"bf16_gflops": 700_000.0, "fp32_gflops": 50_000.0, "copy_gb_per_s": 3000.0},
    "machine": {"gpu": "NVIDIA H100", "cpu": "Xeon"},
    "versions": {"python": "3.11", "torch": "2.13"},
    "profile": None,
}


def piece(result, status="done", seconds=12.4):
    return {"status": status, "seconds": seconds, "result": result}


def test_everything_is_in_it():
    pairs = [{"ours": 100.0, "peer": 40.0, "ratio": 2.5}]
    operations = [{"name": "aten::mm", "calls": 12, "ms": 34.56, "share": 0.5}]
    text = summary(
        {
            "w64": piece(MEASURED),
            "profile": piece({**MEASURED, "profile": operations}),
            "trl": piece({**MEASURED, "critic": "separate", "vs": {"pairs": pairs, "median_ratio": 2.5}}),
            "tests": piece("13 passed, 9 deselected in 41.2s"),
        },
        222.2,
    )
    for line in (
        "NVIDIA H100 (python 3.11, torch 2.13); matrix products: 700.0 TFLOP/s in bf16, 50.0 in fp32; copy 3000 GB/s. "
        "W-synthetic of size base in bf16 on cuda, 20 tokens a response.",
        "| 64 | 4321 | 0.25 | 0.12 | 0.01 | 0.12 | 12.5% | 6.00 | 5.00 | 1.20 |",
        "| pair, 64 responses, separate critic | ours, tokens/s | TRL 1.12, tokens/s | ratio |\n| --- | --- | --- | --- |\n"
        "| 1 | 100.0 | 40.0 | 2.50 |\n| median |  |  | 2.50 |",
        "| `aten::mm` | 12 | 34.6 | 50.0% |",
        "| tests | done: 13 passed, 9 deselected in 41.2s | 12 |",
        "| in all |  | 222 |",
    ):
        assert f"\n{line}\n" in text
