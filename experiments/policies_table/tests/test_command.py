"""The command: trainings side by side, an output that is made from their cells, and going on where it was interrupted."""

import json
from pathlib import Path

import pytest

from experiments.policies_table import command as benchmark_policies
from tests.parts.policy_runs import domain_file

TINY = ["--policies", "dqn", "gp_sarsa", "--errors", "15", "--seeds", "2"]
TINY += ["--marks", "10", "20", "--test_dialogues", "20"]


def in_this_process(jobs, num_processes):
    """What `run_jobs` does, without processes."""
    for name, job in jobs:
        try:
            job()
        except Exception as error:
            yield name, f"Traceback of {error}"
        else:
            yield name, None


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(benchmark_policies, "run_jobs", in_this_process)


def words(folder: Path, *more: str) -> list[str]:
    domain = domain_file(folder) if not (folder / "tea.json").is_file() else folder / "tea.json"
    return [*TINY, "--domain", str(domain), "--output", str(folder / "table.json"), *more]


def table(folder: Path) -> dict:
    """The output without seconds, and without the commit, which may change while the tests run."""
    found = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    for one in found["cells"]:
        del one["made_with"]
        for point in one["points"]:
            point["training"] = {k: v for k, v in point["training"].items() if "seconds" not in k}
    for row in found["summary"]:
        row["training"] = {k: v for k, v in row["training"].items() if "seconds" not in k}
    return {key: found[key] for key in ("cells", "summary", "missing")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a table that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark_policies, "run_jobs", in_this_process)
        assert benchmark_policies.main(words(folder, "--markdown", str(folder / "table.md"))) == 0
    return folder


@pytest.mark.slow
def test_a_table_from_the_command_to_the_files(whole):
    found = json.loads((whole / "table.json").read_text(encoding="utf-8"))
    assert found["missing"] == []
    assert found["settings"]["marks"] == [10, 20]
    rows = {(row["policy"], row["mark"]): row for row in found["summary"]}
    assert set(rows) == {("random", 0), ("handcrafted", 0), *((n, m) for n in ("dqn", "gp_sarsa") for m in (10, 20))}
    for (name, mark), row in rows.items():
        assert row["seeds"] == ([0, 1] if mark else [0])
        assert row["reward"]["low"] <= row["reward"]["mean"] <= row["reward"]["high"]
        difference = row["reward"]["mean"] - rows["handcrafted", 0]["reward"]["mean"]
        assert row["difference_from_handcrafted"]["reward"]["mean"] == pytest.approx(difference), name
    assert len(found["cells"]) == 6
    assert (whole / "table.png").read_bytes().startswith(b"\x89PNG")
    assert "| handcrafted | 1 |" in (whole / "table.md").read_text(encoding="utf-8")
    assert not (whole / "table.cells" / ".lock").exists()


@pytest.mark.slow
def test_a_table_goes_on_where_it_was_interrupted(whole, here, tmp_path, monkeypatch, caplog):
    original, made = benchmark_policies.make_cell, []

    def interrupted(cell, *args):
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(cell)
        original(cell, *args)

    monkeypatch.setattr(benchmark_policies, "make_cell", interrupted)
    assert benchmark_policies.main(words(tmp_path)) == 130
    assert "the same command goes on from there" in caplog.text
    assert "missing: dqn at 15 % error: seed 1" in caplog.text
    assert len(table(tmp_path)["cells"]) == 4
    made[:] = made[:0]
    assert benchmark_policies.main(words(tmp_path)) == 0
    assert [str(cell) for cell in made] == ["dqn at 15 % error, seed 1", "gp_sarsa at 15 % error, seed 1"]
    assert table(tmp_path) == table(whole)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--marks", "10", "30"], "marks: [10, 20] -> [10, 30]"),
        (["--args", "{dqn: {lr: 1e-4}}"], "args: "),
        (["--domain", "restaurant"], "domain_hash: "),
    ],
)
def test_cells_of_other_settings_are_refused_by_name(whole, here, more, said, capsys):
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    assert benchmark_policies.main(words(whole, *more)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "another --output" in error
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before
