"""SIGTERM and SIGINT in whole runs: what is saved, how the run ends, and that --resume continues it exactly."""

import os
import signal

import pytest

from rlhf_dialog import BaseReward, RewardFactory
from tests.parts.ppo_runs import rows, without_clocks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="signals of POSIX"),
    pytest.mark.usefixtures("handlers"),
]


class Signalled(BaseReward):
    """Sends this process the signal in its `at`th call, once; 0: never. The same reward in the eyes of --resume."""

    at, signum, calls = 0, signal.SIGTERM, 0

    def __call__(self, dialogues):
        Signalled.calls += 1
        if Signalled.calls == Signalled.at:
            signal.raise_signal(Signalled.signum)
        return [sum(letter in "aeiou" for letter in d.response) / 10 for d in dialogues]


class Hasty(BaseReward):
    def __init__(self):
        signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def code_of(run):
    """The exit code of a run of five iterations, or that of its SystemExit."""
    RewardFactory.register("Signalled", Signalled)
    RewardFactory.register("Hasty", Hasty)

    def code_of(name: str, *words: str) -> int:
        words = ("--experiment_name", name, "--reward_class", "{id: Signalled}", "--max_iterations", "5", *words)
        try:
            return run(*words, "--save_interval", "3")
        except SystemExit as end:
            return end.code

    return code_of


@pytest.mark.parametrize(("at", "signum"), [(2, signal.SIGTERM), (5, signal.SIGINT)])
def test_the_iteration_is_saved_and_resuming_continues_it_exactly(code_of, tmp_path, signum, at, capfd):
    """5 is the last iteration."""
    Signalled.at, Signalled.signum, Signalled.calls = at, signum, 0
    assert code_of("cut") == 128 + signum
    folder, whole = tmp_path / "run_results/cut", tmp_path / "run_results/whole"
    assert (folder / "checkpoints" / "latest").read_text(encoding="utf-8").strip() == f"iter_{at:06d}"
    assert [row["iteration"] for row in rows(folder)] == list(range(1, at + 1))
    assert not (folder / "agent").exists()
    assert not [path for path in folder.rglob("*") if path.suffix in (".tmp", ".old", ".partial")]
    text = capfd.readouterr().err
    assert f"saved after iteration {at}; continue with --resume" in text
    assert "rlhf-dialog export --run run_results/cut --output DIR\n" in text
    assert "Traceback" not in text
    assert code_of("cut", "--resume") == code_of("whole") == 0
    assert without_clocks(folder) == without_clocks(whole)
    model = "agent/model.safetensors"
    assert (folder / model).read_bytes() == (whole / model).read_bytes()


def test_a_signal_while_it_loads_leaves_nothing(code_of, tmp_path, capfd):
    assert code_of("cut", "--reward_class", "{id: Hasty}") == 143
    assert not (tmp_path / "run_results").exists()
    assert "Traceback" not in capfd.readouterr().err
