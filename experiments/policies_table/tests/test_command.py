"""The command: trainings side by side, an output that is made from their cells, and going on where it was interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.policies_table import command as benchmark_policies
from rlhf_dialog.task_oriented.policies.base import PolicyFactory
from rlhf_dialog.task_oriented.policies.dqn import DQN
from tests.parts.policy_runs import domain_file
from tests.parts.processes import ROOT

PROGRAM = (sys.executable, "-m", "experiments.policies_table")
TINY = [
    "--policies",
    "dqn",
    "gp_sarsa",
    "--errors",
    "15",
    "--seeds",
    "2",
    "--marks",
    "10",
    "20",
    "--test_dialogues",
    "20",
]
OWN = """
from rlhf_dialog.task_oriented.policies.base import PolicyFactory
from rlhf_dialog.task_oriented.policies.handcrafted import RandomPolicy

@PolicyFactory.register("own")
class Own(RandomPolicy):
    def update(self):
        raise ValueError("the updates of mine")
"""


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


@pytest.mark.slow
def test_policies_errors_and_seeds_may_be_added(whole, here, tmp_path, caplog):
    first = words(tmp_path, "--seeds", "1", "--policies", "dqn")
    assert benchmark_policies.main(first) == 0
    assert benchmark_policies.main(words(tmp_path)) == 0
    assert "3 of 6 trainings are there already" in caplog.text
    assert table(tmp_path) == table(whole)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--marks", "10", "30"], "marks: [10, 20] -> [10, 30]"),
        (["--test_dialogues", "30"], "test_dialogues: 20 -> 30"),
        (["--user", "fixed"], "user: 'friendly' -> 'fixed'"),
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


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--policies", "dqm"], "did you mean 'dqn'?"),
        (["--seeds", "0"], "--seeds: found 0, wanted 1 or more"),
        (["--errors", "-1"], "--errors: found [-1.0]"),
        (["--marks", "0"], "--marks: found [0]"),
        (["--processes", "0"], "--processes: found 0"),
        (["--budget", "soon"], "--budget: found 'soon'"),
        (["--args", "dqn"], "--args: found 'dqn'"),
        (["--args", "{dqn: {learning_rate: 1}}"], "wrong arguments for dqn"),
        (["--args", "{dqn: {lr: -1}}"], "policy.args.lr: found -1"),
        (["--args", "{bbqn: {lr: 0.1}}"], "bbqn is not in the table"),
        (["--args", "{"], "cannot be read"),
        (["--user", "rude"], "user 'rude' is unknown"),
        (["--domain", "nowhere"], "nowhere"),
        (["--register", "nowhere.py"], "nowhere.py"),
        (["--language_model", "nowhere"], "holds no language model"),
        (["--output", "."], "--output"),
        (["--policies", "dqn", "language_model"], "--language_model RUN/agent adds its row"),
        (["--errors", "15", "15.0000001"], "--errors: found 15.0000001, wanted 6 digits at most"),
        (["--first_seed", "-1"], "--first_seed: found -1, wanted 0 to"),
        (["--first_seed", str(2**31)], "--first_seed: found 2147483648"),  # the users of the tests
        (["--first_seed", str(2**30 - 1)], f"wanted 0 to {2**30 - 2}"),  # two seeds; 2^30 has the users of validations
    ],
)
def test_a_mistake_ends_with_code_2_and_writes_nothing(here, tmp_path, more, said, capsys):
    assert benchmark_policies.main(words(tmp_path, *more)) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["tea.json"]


@pytest.mark.parametrize("name", ["table.json", "table.png"])
def test_the_tables_for_a_document_do_not_replace_the_output(here, tmp_path, name, capsys):
    assert benchmark_policies.main(words(tmp_path, "--markdown", str(tmp_path / name))) == 2
    assert "is written by --output already" in capsys.readouterr().err


def test_after_the_budget_nothing_begins(here, tmp_path, caplog):
    assert benchmark_policies.main(words(tmp_path, "--budget", "0s")) == 0
    assert "missing: dqn at 15 % error: seeds 0, 1" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["tea.json"]


@pytest.mark.slow
def test_a_policy_that_fails_ends_with_code_1_and_the_others_are_kept(here, tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.setitem(PolicyFactory.classes, "own", None)
    own = tmp_path / "own.py"
    own.write_text(OWN, encoding="utf-8")
    given = words(tmp_path, "--policies", "own", "dqn", "--register", str(own))
    assert benchmark_policies.main(given) == 1
    assert caplog.text.count("the updates of mine") == 1  # the second seed does not begin
    assert "own: a training has failed" in capsys.readouterr().err
    found = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    assert found["missing"] == ["own at 15 % error: seeds 0, 1"]
    assert sorted({cell["known"]["policy"] for cell in found["cells"]}) == ["dqn", "handcrafted", "random"]


@pytest.mark.slow
def test_a_policy_of_your_own_that_was_changed_is_not_taken_for_the_old_one(here, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(PolicyFactory.classes, "own", None)
    own = tmp_path / "own.py"
    own.write_text(OWN.replace('raise ValueError("the updates of mine")', "return {}"), encoding="utf-8")
    given = words(tmp_path, "--policies", "own", "--seeds", "1", "--register", str(own))
    assert benchmark_policies.main(given) == 0
    before = (tmp_path / "table.json").read_bytes()
    assert benchmark_policies.main(given) == 0
    own.write_text(own.read_text(encoding="utf-8") + "\n# another policy", encoding="utf-8")
    capsys.readouterr()
    assert benchmark_policies.main(given) == 2
    error = capsys.readouterr().err
    assert "own_15_0.json: was made with other settings" in error
    assert "register: " in error
    assert (tmp_path / "table.json").read_bytes() == before


@pytest.mark.slow
def test_arguments_come_from_a_file_too(here, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(DQN, "update", lambda own: seen.append(own.learner.optimizer.param_groups[0]["lr"]) or {})
    path = tmp_path / "args.yaml"
    path.write_text("dqn: {lr: 5e-4}", encoding="utf-8")
    assert benchmark_policies.main(words(tmp_path, "--policies", "dqn", "--seeds", "1", "--args", str(path))) == 0
    assert set(seen) == {0.0005}


@pytest.mark.slow
def test_a_row_of_another_first_seed(here, tmp_path):
    given = words(tmp_path, "--policies", "gp_sarsa", "--first_seed", "7", "--seeds", "1")
    assert benchmark_policies.main(given) == 0
    assert {cell["known"]["seed"] for cell in table(tmp_path)["cells"]} == {7}


def command(folder: Path, *more: str) -> list[str]:
    return [*PROGRAM, *words(folder, *more)]


@pytest.mark.slow
def test_neither_processes_nor_a_kill_change_a_number(whole, tmp_path):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    killed = subprocess.Popen(command(tmp_path, "--processes", "2"), env=env, stderr=subprocess.DEVNULL)
    while len(list((tmp_path / "table.cells").glob("*.json"))) < 2:
        assert killed.poll() is None
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(list((tmp_path / "table.cells").glob("*.json"))) < 6
    subprocess.run(command(tmp_path, "--processes", "1"), env=env, check=True, capture_output=True)
    assert table(tmp_path) == table(whole)
    cells = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "table.cells").iterdir()}
    subprocess.run(command(tmp_path, "--processes", "2"), env=env, check=True, capture_output=True)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "table.cells").iterdir()} == cells


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_is_finished(tmp_path, signum, code):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(
        command(tmp_path, "--processes", "2"), env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    while not list((tmp_path / "table.cells").glob("*.json")):
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signum)
    _, error = running.communicate()
    assert running.returncode == code, error
    assert "the same command goes on from there" in error
    assert "Traceback" not in error
    assert (tmp_path / "table.json").is_file()
