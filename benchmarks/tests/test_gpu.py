"""scripts/benchmark_gpu.py: its plan, its limits, what a failing piece costs, and one run of every piece on the CPU."""

import json
import sys

import pytest

from benchmarks import benchmark, gpu, trl
from benchmarks.gpu import Piece
from tests.parts.processes import ROOT, run_python

pytestmark = pytest.mark.usefixtures("registered")
NAMES = ["w64", "w256", "w1024", "profile", "trl", "tests"]


def planned(*words):
    return gpu.plan(gpu.parse([*words, "--out=out"]), ROOT / "folder")


def piece(name, program, limit=100.0, **options):
    return Piece(name, limit, [sys.executable, "-c", program, "{json}"], **options)


def test_the_limits_add_up_to_ten_minutes():
    assert [piece.name for piece in planned()] == NAMES
    assert sum(piece.limit for piece in planned()) <= 600


@pytest.mark.parametrize("words", [[], ["--device=cpu", "--tiny"]])
def test_every_command_is_one_that_its_program_reads(words):
    for piece in planned(*words)[:5]:
        assert piece.words[:4] == [sys.executable, "-P", "-m", "benchmarks.benchmark"]
        options = benchmark.parse(piece.words[4:])
        assert (options.dtype, options.rollout_batch_size // options.minibatch) == ("bf16", 4)
        if options.vs:
            theirs = trl.parse(options.vs.split()[4:])
            same = ("size", "dtype", "device", "rollout_batch_size", "minibatch", "max_new_tokens", "iterations")
            same += ("epochs",)
            assert [getattr(theirs, name) for name in same] == [getattr(options, name) for name in same]


def test_a_piece_that_fails_hangs_or_cannot_run_does_not_stop_the_others(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "LEAST", 1.0)
    hangs = "import time\nprint('begun', flush=True)\ntime.sleep(1000)"
    works = "import json, sys\njson.dump([1, 2], open(sys.argv[1], 'w'))\nprint('well')"
    pieces = [
        piece("fails", "print('so far')\nraise SystemExit('no memory')"),
        piece("hangs", hangs, 3.0),
        piece("cannot", "", obstacle=lambda: "no tests here"),
        piece("works", works),
        piece("says", "print('3 passed')"),
    ]
    outcomes = gpu.run_pieces(pieces, tmp_path, tmp_path, 1000.0)
    statuses = ["failed with exit code 1: no memory", "stopped after 3 s", "skipped: no tests here", "done", "done"]
    assert [outcome.status for outcome in outcomes] == statuses
    found = json.loads((tmp_path / "results.json").read_text())
    assert (found["works"]["result"], found["says"]["result"]) == ([1, 2], "3 passed")
    log = (tmp_path / "log.txt").read_text()
    assert all(word in log for word in ("so far", "begun", "well", "3 passed"))
    assert "| cannot | skipped: no tests here | 0 |" in (tmp_path / "summary.md").read_text()
    assert "summary: " in capsys.readouterr().out


@pytest.mark.slow
def test_every_piece_on_the_cpu(tmp_path):
    out = tmp_path / "out"
    words = ["--device=cpu", "--tiny", "--minutes=30", "--out", out, "--only", "w8", "profile", "trl", "tests"]
    ran = run_python(ROOT / "scripts/benchmark_gpu.py", *words)
    assert ran.returncode == 0, ran.stdout + ran.stderr + (out / "log.txt").read_text()
    found = json.loads((out / "results.json").read_text())
    assert list(found) == ["w8", "profile", "trl", "tests"]
    assert {path.name for path in out.iterdir()} == {
        *("summary.md", "results.json", "log.txt", "profile.txt", "trace.json.gz")
    }
    statuses = {name: piece["status"] for name, piece in found.items()}
    trl = statuses.pop("trl")
    assert set(statuses.values()) == {"done"}
    assert trl == "done" or trl.startswith("skipped: pip cannot install trl==1.12.0")  # where no package index answers
    assert " passed" in found["tests"]["result"]
    summary = (out / "summary.md").read_text()
    assert ("| median |" in summary) == (trl == "done")
    assert "\n| 8 | " in summary
