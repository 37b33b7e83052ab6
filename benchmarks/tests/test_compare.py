"""The arithmetic of comparisons, and peers that run in turn with the benchmark."""

import json

import pytest

from benchmarks import benchmark, compare
from benchmarks.tests.inputs import RATES, error_of, result

pytestmark = pytest.mark.usefixtures("registered")


def test_a_comparison_divides_by_the_matrix_product_of_its_own_call():
    now = result(tokens_per_s=100.0, phases={"rollout": 2.0, "reference": 0.5, "update": 1.0})
    now["calibration"] = {**RATES, "fp32_gflops": 200.0}
    found = compare.ratios(now, result())
    assert found["calibration"] == 2.0
    assert found["tokens_per_s"] == pytest.approx((100 / 200) / (60 / 100))
    assert found["phases"] == {"whole iteration": 2.0, "rollout": 4.0, "reference": None, "update": 1.0}
    bf16 = compare.ratios({**now, "dtype": "bf16"}, result(dtype="bf16"))
    assert bf16["phases"]["rollout"] == 2.0  # their bf16 products are equally fast


@pytest.mark.parametrize(
    "changes", [{"workload": "W"}, {"size": "base"}, {"critic": "separate"}, {"dtype": "bf16"}, {"epochs": 4}]
)
def test_other_work_is_not_compared(changes, tmp_path, capsys):
    (tmp_path / "base.json").write_text(json.dumps(result(**changes)), encoding="utf-8")
    message = error_of(capsys, "--size=test", "--device=cpu", f"--compare={tmp_path / 'base.json'}")
    assert "is of a different workload" in message
    assert f"{next(iter(changes))} {next(iter(changes.values()))!r} there" in message


def test_ours_and_the_peer_run_in_turn(tmp_path, monkeypatch, caplog):
    speeds, log = iter([10.0, 40.0, 20.0]), tmp_path / "log"

    def ours(options):
        log.write_text((log.read_text() if log.exists() else "") + "A", encoding="utf-8")
        return result(tokens_per_s=next(speeds))

    monkeypatch.setattr(compare, "own_run", ours)
    command = f"""printf B >> {log} && echo noise && echo 'SUMMARY {{"tok_s": 5.0}}'"""
    found = compare.in_turn(benchmark.parse(["--size=test", "--pairs=3", f"--vs={command}"]))
    assert log.read_text() == "BABABA"  # the peer first, so that one that cannot start ends the comparison at once
    assert [pair["ratio"] for pair in found["vs"]["pairs"]] == [2, 8, 4]
    assert (found["vs"]["median_ratio"], found["tokens_per_s"]) == (4, 20)
    assert "runs other prompts than W-synthetic" in caplog.text


@pytest.mark.parametrize(
    ("output", "speed"),
    [
        ('x\nSUMMARY {"tok_s": 38.5, "size": "small"}\n', 38.5),
        ('{"tokens_per_s": 3}\nSUMMARY {"tok_s": 4}\nbye', 4),
        ('{\n "tokens_per_s": 7.0\n}\n', 7),
        ('{"tokens_per_s": 0}', None),
        ('{"tokens_per_s": null}', None),
        ("SUMMARY of nothing\n[1]\n", None),
        ("", None),
    ],
)
def test_what_a_peer_says(output, speed):
    assert compare.speed_in(output) == speed
