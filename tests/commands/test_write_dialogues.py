import subprocess
import sys

import pytest

from rlhf_dialog.commands.write_dialogues import main
from tests.parts.processes import environment


@pytest.mark.slow
def test_same_seed_same_bytes_whatever_the_hash_seed(tmp_path):
    def written(name: str, seed: int, hash_seed: str) -> dict[str, bytes]:
        command = [
            *(sys.executable, "-P", "-m", "rlhf_dialog", "write-dialogues", "--output", str(tmp_path / name)),
            *("--num_dialogues", "100", "--seed", str(seed)),
        ]
        subprocess.run(command, check=True, capture_output=True, env=environment(PYTHONHASHSEED=hash_seed))
        return {str(p.relative_to(tmp_path / name)): p.read_bytes() for p in (tmp_path / name).rglob("*.jsonl")}

    first = written("a", 3, "1")
    assert first == written("b", 3, "2")
    assert first != written("c", 4, "1")


def test_a_folder_that_holds_something_is_refused(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("keep")
    assert main(["--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path) in error
    assert "output" in error
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_filled_and_nothing_is_left_beside_it(tmp_path, capsys):
    output = tmp_path / "new" / "data"
    output.mkdir(parents=True)
    assert main(["--output", str(output), "--num_dialogues", "40"]) == 0
    assert "32 train, 4 validation, 4 test" in capsys.readouterr().out
    assert [path.name for path in output.parent.iterdir()] == ["data"]


@pytest.mark.slow
def test_exchanges_and_pairs(tmp_path, capsys):
    for name, words in (("said", []), ("missed", ["--careless", "0.5"]), ("pairs", ["--pairs", "7"])):
        assert main(["--output", str(tmp_path / name), "--num_dialogues", "40", *words]) == 0
    out = capsys.readouterr().out
    assert out.count("32 train, 4 validation, 4 test") == 2
    assert f"{tmp_path / 'pairs' / 'pairs.jsonl'}: 7 pairs" in out
    said, missed = ((tmp_path / name / "train.jsonl").read_text().splitlines() for name in ("said", "missed"))
    assert len(said) == len(missed) == 32
    assert 5 < sum(a != b for a, b in zip(said, missed, strict=True)) < 27
