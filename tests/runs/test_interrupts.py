"""SIGTERM and SIGINT: what is finished, what is saved, how the run ends, and that --resume continues it exactly."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import yaml
from processes import HANGING, start_python

from rlhf_dialog import BaseReward, RewardFactory, main
from rlhf_dialog.commands import train_intent_classifier, train_sft
from rlhf_dialog.runs import interrupts
from rlhf_dialog.runs.interrupts import Interrupts
from rlhf_dialog.training.supervised import hugging_face_trainer

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
ENDS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit}
SCRIPT = """
import sys, time
from rlhf_dialog import BaseReward, RewardFactory, main

@RewardFactory.register("Vowels")
class Vowels(BaseReward):
    def __call__(self, dialogues):
        time.sleep(0.1)
        return [sum(letter in "aeiou" for letter in d.response) / 10 for d in dialogues]

sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def handlers():
    """`main` installs a handler of SIGTERM for the life of the process."""
    before = {signum: signal.getsignal(signum) for signum in ENDS}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


class Clock:
    """`time.monotonic` of the module under test, moved by hand."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(interrupts, "time", clock)
    return clock


def after_one_iteration(watch: Interrupts, clock: Clock, seconds: float) -> None:
    clock.now += seconds
    watch.iteration_ended(1, saved=False)


# the class


@pytest.mark.parametrize("signum", list(ENDS))
def test_the_first_iteration_is_left_at_once(signum, capfd):
    with pytest.raises(ENDS[signum]) as error, Interrupts(20):
        signal.raise_signal(signum)
    assert getattr(error.value, "code", 143) == 143
    assert f"{signum.name}: leaving at once, because this is the first iteration" in capfd.readouterr().err


@pytest.mark.parametrize("signum", list(ENDS))
def test_an_iteration_that_ends_in_time_is_finished_and_left_only_when_saved(signum, clock, capfd):
    with Interrupts(20) as watch:
        after_one_iteration(watch, clock, seconds=30)
        clock.now += 12
        assert not watch.asked
        signal.raise_signal(signum)
        assert watch.asked
        watch.iteration_ended(2, saved=False)
        with pytest.raises(ENDS[signum]):
            watch.iteration_ended(3, saved=True)
    assert f"{signum.name}: finishing the iteration, about 18 s" in capfd.readouterr().err


def test_an_iteration_that_needs_longer_is_left_at_once(clock, capfd):
    with Interrupts(20) as watch:
        after_one_iteration(watch, clock, seconds=30)
        clock.now += 5
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
    assert "the iteration needs about 25 s more" in capfd.readouterr().err


def test_an_iteration_longer_than_the_last_one_is_given_the_seconds_of_grace(clock):
    with Interrupts(20) as watch:
        after_one_iteration(watch, clock, seconds=3)
        clock.now += 100
        signal.raise_signal(signal.SIGTERM)
        assert watch.asked


def test_what_turns_out_to_take_longer_is_left_after_the_seconds_of_grace(capfd):
    start = time.monotonic()
    with Interrupts(0.3) as watch:
        watch.iteration_ended(1, saved=True)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit) as error:
            time.sleep(600)
    assert error.value.code == 143
    assert time.monotonic() - start > 0.2
    assert "takes longer than expected" in capfd.readouterr().err


def test_the_alarm_does_not_ring_when_the_block_has_ended():
    with Interrupts(0.2) as watch:
        watch.iteration_ended(1, saved=True)
        signal.raise_signal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: pytest.fail("rang"))
    time.sleep(0.4)


@pytest.mark.parametrize("second", list(ENDS))
def test_a_second_signal_ends_the_process_but_not_an_echo_of_the_first(second, clock, monkeypatch, capfd):
    ends = []
    monkeypatch.setattr(interrupts.os, "_exit", ends.append)
    with Interrupts(20) as watch:
        after_one_iteration(watch, clock, seconds=3)
        signal.raise_signal(signal.SIGTERM)
        clock.now += 0.1
        signal.raise_signal(signal.SIGTERM)
        assert ends == []
        clock.now += 2
        signal.raise_signal(second)
        assert ends == [128 + second]
    assert f"{second.name} again" in capfd.readouterr().err


def test_a_second_signal_ends_the_process_while_it_tidies_up(clock, monkeypatch):
    ends = []
    monkeypatch.setattr(interrupts.os, "_exit", ends.append)
    with Interrupts(20):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        clock.now += 2
        signal.raise_signal(signal.SIGINT)
    assert ends == [130]


def test_the_handlers_of_before_come_back_and_an_ignored_signal_stays_ignored():
    mine = lambda *_: None  # noqa: E731
    signal.signal(signal.SIGTERM, mine)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts(20):
        assert signal.getsignal(signal.SIGTERM) is not mine
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is mine
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_outside_the_main_thread_nothing_is_installed():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with Interrupts(20) as watch:
            watch.iteration_ended(1, saved=True)
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


# whole runs


class Vowels(BaseReward):
    """Sends this process the signal in its `at`th call, once; 0: never. The same reward in the eyes of --resume."""

    at, signum, calls = 0, signal.SIGTERM, 0

    def __call__(self, dialogues):
        Vowels.calls += 1
        if Vowels.calls == Vowels.at:
            signal.raise_signal(Vowels.signum)
        return [sum(letter in "aeiou" for letter in d.response) / 10 for d in dialogues]


def signal_at(at: int, signum: int = signal.SIGTERM) -> None:
    Vowels.at, Vowels.signum, Vowels.calls = at, signum, 0


class Hasty(BaseReward):
    def __init__(self):
        signal.raise_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    tiny.gpt2().save_pretrained(root / "model")
    tiny.byte_tokenizer().save_pretrained(root / "model")
    tiny.write_data(root / "data", 6)
    return root


@pytest.fixture
def run(world, tmp_path, monkeypatch):
    """`run(name, "--key", "value")` runs main in an empty folder; returns the exit code, or that of its SystemExit."""
    monkeypatch.chdir(tmp_path)
    signal_at(0)
    monkeypatch.setattr(RewardFactory, "classes", {**RewardFactory.classes, "Vowels": Vowels, "Hasty": Hasty})
    settings = {
        "model_path": str(world / "model"),
        "env": {"args": {"data_path": str(world / "data")}},
        "reward_class": {"id": "Vowels"},
        **{"rollout_batch_size": 4, "num_mini_batch": 2, "ppo_epoch": 1, "max_new_tokens": 5, "max_prompt_length": 40},
        **{"max_iterations": 5, "save_interval": 3, "lr": 1e-3, "device": "cpu", "pytorch_threads": 1},
    }
    (tmp_path / "ppo.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")

    def run(name: str, *words: str) -> int:
        try:
            return main(["--config", "ppo.yaml", "--experiment_name", name, *words])
        except SystemExit as end:
            return end.code

    return run


def rows(name: str) -> list[dict]:
    lines = (Path("run_results") / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(("time/", "FPS"))}
        for line in lines
    ]


def leftovers() -> list[str]:
    """Temporary files of a run folder."""
    return [str(path) for path in Path("run_results").rglob("*") if path.name.endswith((".tmp", ".old", ".partial"))]


@pytest.mark.whole_run
@pytest.mark.parametrize("signum", list(ENDS))
@pytest.mark.parametrize("at", [2, 3, 5])
def test_the_iteration_is_saved_and_resuming_continues_it_exactly(run, signum, at, capfd):
    """3 is an iteration that is saved anyway, 5 the last one."""
    signal_at(at, signum)
    assert run("cut") == 128 + signum
    folder = Path("run_results/cut")
    assert (folder / "checkpoints" / "latest").read_text(encoding="utf-8").strip() == f"iter_{at:06d}"
    assert [row["iteration"] for row in rows("cut")] == list(range(1, at + 1))
    assert not (folder / "agent").exists()
    assert leftovers() == []
    text = capfd.readouterr().err
    assert f"saved after iteration {at}; continue with --resume" in text
    assert f"rlhf-dialog export --run {folder} --output DIR\n" in text
    assert "Traceback" not in text
    assert run("cut", "--resume") == 0
    assert run("whole") == 0
    assert rows("cut") == rows("whole")
    model = "agent/model.safetensors"
    assert (folder / model).read_bytes() == (Path("run_results/whole") / model).read_bytes()


@pytest.mark.whole_run
def test_without_grace_the_last_checkpoint_stands(run):
    signal_at(5)
    assert run("cut", "--grace_seconds", "0") == 143
    assert (Path("run_results/cut/checkpoints/latest")).read_text(encoding="utf-8").strip() == "iter_000003"
    assert leftovers() == []
    assert run("cut", "--resume") == 0
    assert run("whole") == 0
    assert rows("cut") == rows("whole")


@pytest.mark.whole_run
def test_in_the_first_iteration_nothing_is_saved(run, capfd):
    signal_at(1)
    assert run("cut") == 143
    assert not Path("run_results/cut/checkpoints").exists()
    text = capfd.readouterr().err
    assert "leaving at once" in text
    assert "Traceback" not in text
    assert run("cut") == 0


@pytest.mark.whole_run
def test_a_signal_while_it_loads_leaves_nothing(run, capfd):
    assert run("cut", "--reward_class", "{id: Hasty}") == 143
    assert not Path("run_results").exists()
    assert "Traceback" not in capfd.readouterr().err


def wait_until(reached: Callable[[], bool], process: subprocess.Popen) -> None:
    """Until `reached()`; fails when the process ends before."""
    end = time.monotonic() + HANGING
    while not reached():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.whole_run
def test_a_process_that_gets_sigterm_is_continued_exactly(run):
    """The signal comes from outside, at whatever moment of an iteration it happens to be."""
    Path("script.py").write_text(SCRIPT, encoding="utf-8")
    words = ["--config", "ppo.yaml", "--max_iterations", "1000", "--save_interval", "1000", "--experiment_name", "cut"]
    process = start_python("script.py", *words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    metrics = Path("run_results/cut/metrics.jsonl")
    wait_until(lambda: metrics.exists() and metrics.read_text(encoding="utf-8").count("\n") >= 3, process)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=HANGING)[1]
    assert process.returncode == 143, errors
    assert "Traceback" not in errors
    saved = Path("run_results/cut/checkpoints/latest").read_text(encoding="utf-8").strip()
    done = int(saved.removeprefix("iter_"))
    assert 3 <= done == len(rows("cut"))
    assert run("cut", "--max_iterations", str(done + 2), "--resume") == 0
    assert run("whole", "--max_iterations", str(done + 2)) == 0
    assert len(rows("whole")) == done + 2
    assert rows("cut") == rows("whole")


@pytest.mark.whole_run
def test_a_second_signal_leaves_a_run_that_can_be_resumed(run):
    """The process ends in the middle of an iteration that would have taken an hour."""
    fifth = "self.n = getattr(self, 'n', 0) + 1\n        if self.n == 5: open('asleep', 'w'); time.sleep(3600)"
    script = SCRIPT.replace("time.sleep(0.1)", fifth)
    Path("script.py").write_text(script, encoding="utf-8")
    words = ["--config", "ppo.yaml", "--experiment_name", "cut", "--grace_seconds", "600"]
    process = start_python("script.py", *words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_until(Path("asleep").exists, process)
    process.send_signal(signal.SIGINT)
    time.sleep(interrupts.TWICE + 0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=HANGING)[1]
    assert process.returncode == 143, errors
    assert "SIGINT: finishing the iteration" in errors
    assert "SIGTERM again" in errors
    assert run("cut", "--resume") == 0
    assert run("whole") == 0
    assert rows("cut") == rows("whole")


# the supervised stages


SIZES = {
    train_sft: [
        "--n_layer",
        "1",
        "--n_embd",
        "32",
        "--n_head",
        "2",
        "--vocab_size",
        "300",
        "--evals",
        "1",
    ],
    train_intent_classifier: [
        *("--num_layers", "1", "--hidden_size", "32", "--vocab_size", "300", "--max_length", "48"),
    ],
}


@pytest.mark.whole_run
@pytest.mark.parametrize("signum", list(ENDS))
@pytest.mark.parametrize("command", list(SIZES), ids=lambda command: command.__name__.split(".")[-1])
def test_a_supervised_training_leaves_no_half_written_folder(world, tmp_path, monkeypatch, capfd, command, signum):
    """The signal comes when the loss of a step is logged, in the middle of the library's training loop."""
    steps = []
    monkeypatch.setattr(
        hugging_face_trainer._LossLines, "on_log", lambda *_, **__: (steps.append(1), signal.raise_signal(signum))
    )
    words = [
        "--data_path",
        str(world / "data"),
        "--output",
        str(tmp_path / "out"),
        "--max_steps",
        "40",
        "--device",
        "cpu",
    ]
    try:
        code = command.main([*words, *SIZES[command], "--pytorch_threads", "1"])
    except SystemExit as end:
        code = end.code
    assert code == 128 + signum
    assert len(steps) == 1
    assert list(tmp_path.iterdir()) == []
    assert "Traceback" not in capfd.readouterr().err
