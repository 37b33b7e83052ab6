"""The command `rlhf-dialog benchmark`, which starts a program of the checkout."""

import pytest

from rlhf_dialog.commands import benchmark


def test_in_a_checkout_it_is_the_benchmark(capsys):
    with pytest.raises(SystemExit, match="0"):
        benchmark.main(["--help"])
    assert "--workload" in capsys.readouterr().out


def test_without_a_checkout_it_says_where_the_programs_are(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "CHECKOUT", tmp_path)
    assert benchmark.main(["--workload", "W"]) == 2
    said = capsys.readouterr().err
    assert "in the checkout of rlhf-dialog (benchmarks/)" in said
    assert len(said.splitlines()) == 1
