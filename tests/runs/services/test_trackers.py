"""metrics.jsonl, the console and TensorBoard; a missing package is an error before anything is loaded."""

import io
import json
import math
import shutil
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import SignalExit, UserError
from rlhf_dialog.runs.agent import PPOAgent
from rlhf_dialog.runs.metrics_file import cut_metrics, read_metrics
from rlhf_dialog.runs.services.trackers import ConsoleTracker, JsonlTracker, Trackers, TrackerService, check_packages
from rlhf_dialog.runs.services.wandb_tracker import open_wandb
from rlhf_dialog.runs.smoke import smoke
from tests.parts.yaml_files import settings

METRICS = {
    **{"iteration": 3, "time_steps": 1200, "objective/score": 0.25, "objective/kl": 0.0312},
    **{"response/length": 11.5, "FPS": 812.4},
}


def config(**keys) -> Config:
    classes = {"env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}, "model_path": "m"}
    return Config.model_validate({**classes, **keys})


def test_every_line_is_strict_json_and_there_at_once(tmp_path):
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    tracker.log(1, {"iteration": 1, "a/b": 0.1, "nan": math.nan, "inf": math.inf, "neg": -math.inf})
    lines = (tmp_path / "m.jsonl").read_text(encoding="utf-8").splitlines()  # before close: flushed
    tracker.close()
    tracker = JsonlTracker(tmp_path / "m.jsonl")  # a file that exists is continued
    tracker.log(2, {"iteration": 2, "a": np.float32(0.5), "b": torch.tensor(2.0), "c": np.int64(3)})
    tracker.close()
    with pytest.raises(UserError, match="Is a directory"):
        JsonlTracker(tmp_path)

    def refuse(text: str):
        raise AssertionError(f"{text} is not JSON")

    first = {"iteration": 1, "a/b": 0.1, "nan": None, "inf": None, "neg": None}
    assert json.loads(lines[0], parse_constant=refuse) == first
    assert read_metrics(tmp_path / "m.jsonl")[1] == {"iteration": 2, "a": 0.5, "b": 2.0, "c": 3}


def console(tracker: ConsoleTracker, terminal: bool = False, width: int = 120) -> io.StringIO:
    buffer = io.StringIO()
    tracker.console = Console(file=buffer, width=width, force_terminal=terminal, color_system=None)
    return buffer


def test_without_a_terminal_there_is_one_plain_line_per_log_with_the_time_that_is_left(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr("rlhf_dialog.terminal.time.monotonic", lambda: now)
    tracker = ConsoleTracker(config())
    for step, share in ((1, 0.05), (2, 0.1), (20, 1.0)):
        tracker.advance(share)
        tracker.log(step, METRICS | ({"objective/kl": -1e-9} if step == 20 else {}))
        now += 40
    tracker.close()
    out = capsys.readouterr().out
    assert "\x1b" not in out
    first, second, last = out.splitlines()
    assert " ".join(first.split()) == "iteration 1 reward 0.250 KL 0.031 FPS 812 length 11.5 tokens 1200"
    assert second.endswith("tokens 1200  12 min left")  # 90 % at 5 % in 40 s
    assert last.endswith("tokens 1200")
    assert "KL 0.000" in last  # without a sign


def test_a_long_iteration_says_where_it_is(monkeypatch):
    now, tracker, first = 0.0, ConsoleTracker(config(), 2), "collecting the first rollout"
    monkeypatch.setattr("time.monotonic", lambda: now)
    buffer, live = console(tracker), []
    for now in (0.0, 9.9, 10.0, 39.0, 40.0, 71.0):
        tracker.show_position(f"at {now}")
        live.append(str(tracker.__rich__()))  # what a terminal's line would show
    tracker.advance(0.5)
    assert live == [first, first, *(f"iteration 3: at {x}" for x in (10.0, 39.0, 40.0, 71.0))]
    assert str(tracker.__rich__()) == first
    now = 105.0
    tracker.show_position("at 105.0")  # a new iteration, of less than ten seconds
    now, tracker.live = 171.0, True
    tracker.show_position("at 171.0")
    assert buffer.getvalue().splitlines() == [f"iteration 3: at {x}" for x in (10.0, 40.0, 71.0)]


class FakeRollout(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.dialogues)


def replies(texts: list[str], terminal: bool = False) -> list[str]:
    """What the console shows of a rollout whose last turns and responses are `texts`; the first one was cut."""
    dialogues = [Dialogue([f"old {text}", text], response=text, truncated=i == 0) for i, text in enumerate(texts)]
    rollout: Any = FakeRollout(dialogues=dialogues, paid=torch.full((len(texts),), 0.75))
    tracker = ConsoleTracker(config())
    buffer = console(tracker, terminal)
    tracker.show_replies(rollout)
    return buffer.getvalue().splitlines()


def test_two_replies_are_shown_with_the_turn_before_them_and_the_score():
    assert replies(["hello", "good bye"]) == ["| hello -> hello [cut]  0.75", "| good bye -> good bye  0.75"]
    assert replies(["one"]) == ["| one -> one [cut]  0.75"]
    assert [line.split()[1] for line in replies([f"text{i}" for i in range(12)])] == ["text0", "text6"]
    assert replies(["word " * 40, "two\nlines"])[0].startswith("| " + "word " * 19 + "... -> word")
    assert replies(["x", "two\nlines"])[1] == "| two lines -> two lines  0.75"


def test_every_iteration_is_logged_and_every_second_one_shown_with_replies(tmp_path, capsys):
    rollout = FakeRollout(dialogues=[Dialogue(["hello"], response="bye")], paid=torch.tensor([0.75]))
    run: Any = SimpleNamespace(folder=tmp_path, world=World(), iteration=0, progress=0.0, rollout=rollout)
    service = TrackerService(config(log_interval=2), tmp_path, run.world, False)
    assert not service.complete(run, {})  # it has not begun
    service.begin(run)
    for run.iteration in (1, 2, 3):
        assert service.after_iteration(run, {**METRICS, "iteration": run.iteration}) == {}
        assert service.complete(run, {})
    service.end(None)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in shown] == [["iteration", "2"], ["|", "hello"]]
    assert [row["iteration"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3]


@pytest.mark.parametrize("text", ["[/red] [bold] x", r"\\[/red]", "ends with \\", ":smile:"])
def test_markup_in_a_text_is_shown_as_it_is(text):
    for terminal in (False, True):
        assert any(text in line for line in replies([text, text], terminal=terminal))


def test_what_an_evaluation_found_goes_everywhere_at_once(tmp_path, capsys):
    trackers = Trackers(config(log_interval=4, use_tensorboard=True, eval_metric="zeal"), tmp_path)
    found = {f"eval/{name}": 0.5 for name in (*"abcdefgh", "zeal", "score")}
    for iteration in range(1, 5):
        trackers.log(iteration, METRICS | (found | {"time/eval": 2.0} if iteration == 3 else {}))
    trackers.close()
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "evaluation of iteration 3 " + " ".join(f"{x} 0.500" for x in ("score", "zeal", *"abcdef"))
    assert [line[:11] for line in lines[1:]] == ["iteration 4"]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    tags = {name: [event.step for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert {**{name: [4] for name in METRICS}, **{name: [3] for name in found}, "time/eval": [3]} == tags


@pytest.mark.parametrize("words", [{}, {"use_rich_handler": False}])
def test_an_evaluation_has_a_plain_line_on_a_terminal_and_room_for_its_own_bar(monkeypatch, words):
    monkeypatch.setenv("FORCE_COLOR", "1")
    tracker = ConsoleTracker(config(**words))
    buffer = console(tracker, terminal=True)
    live = tracker.progress.live
    assert live.is_started == tracker.live
    with tracker.pause():
        assert not live.is_started
    assert live.is_started == tracker.live
    tracker.log(2, {"eval/score": 0.125, "time/eval": 1.0})
    assert " ".join(buffer.getvalue().split()) == "evaluation of iteration 2 score 0.125"
    tracker.close()


def test_a_full_disk_and_a_metric_that_is_not_a_number_are_the_users_errors(tmp_path, monkeypatch):
    trackers = Trackers(config(), tmp_path)
    with pytest.raises(UserError, match=r"my/words: .*number.*\['a'\]"):
        trackers.log(1, {"iteration": 1, "my/words": ["a"], "x": 0.5})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"iteration": 1, "x": 0.5}]
    monkeypatch.setattr(trackers.jsonl, "file", SimpleNamespace(write=leave_with(OSError(28, "No space left"))))
    with pytest.raises(UserError, match=r"cannot be written: .*No space left"):
        trackers.log(2, METRICS)


def test_a_run_folder_that_was_removed_is_the_users_error(tmp_path):
    (tmp_path / "run").mkdir()
    trackers = Trackers(config(), tmp_path / "run")
    trackers.log(1, METRICS)
    shutil.rmtree(tmp_path / "run")
    for _ in range(2):
        with pytest.raises(UserError, match=r"run/metrics\.jsonl: was removed or moved"):
            trackers.log(2, METRICS)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text("of another run")
    with pytest.raises(UserError, match="was removed or moved"):
        trackers.log(2, METRICS)
    assert not trackers.complete(2, METRICS)
    trackers.close()


def test_a_line_is_completed_once(tmp_path):
    trackers = Trackers(config(), tmp_path)
    trackers.log(1, {"iteration": 1})
    assert trackers.complete(1, {"iteration": 1})
    assert trackers.complete(2, {"iteration": 2, "x": 1.0})
    assert trackers.complete(2, {"iteration": 2})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"iteration": 1}, {"iteration": 2, "x": 1.0}]
    trackers.close()


# -- what only watches


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def failed(caplog):
    return [text.split(":")[0] for text in warnings_of(caplog)]


def leave_with(error):
    def leave(*_):
        raise error

    return leave


def numbers_in(folder):
    return [row["iteration"] for row in read_metrics(folder / "metrics.jsonl")]


def test_a_helper_of_wandb_that_was_killed_costs_one_warning(tmp_path, wandb, caplog):
    keys = config(use_wandb=True)
    trackers = Trackers(keys, tmp_path, wandb=open_wandb(keys, tmp_path))
    trackers.log(1, {**METRICS, "iteration": 1})
    wandb.errors = {"log": ConnectionResetError("Connection lost"), "finish": ConnectionResetError("Connection lost")}
    for iteration in (2, 3):
        trackers.log(iteration, {**METRICS, "iteration": iteration})
    trackers.close()
    (said,) = warnings_of(caplog)
    assert said.startswith("wandb has failed and is not used any more: ConnectionResetError: Connection lost. ")
    assert numbers_in(tmp_path) == [1, 2, 3]
    assert (wandb.runs[0].steps, wandb.torn_down) == ([1], 1)


def test_a_tensorboard_that_fails_costs_one_warning(tmp_path, caplog, monkeypatch):
    trackers = Trackers(config(use_tensorboard=True), tmp_path)
    trackers.log(1, {**METRICS, "iteration": 1})
    monkeypatch.setattr(trackers.others["TensorBoard"].writer, "add_scalar", leave_with(OSError(28, "No space")))
    for iteration in (2, 3):
        trackers.log(iteration, {**METRICS, "iteration": iteration})
    trackers.close()
    assert failed(caplog) == ["TensorBoard has failed and is not used any more"]
    assert numbers_in(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("end", [UnicodeEncodeError("ascii", "é", 0, 1, "range"), SystemExit(0), SignalExit(143)])
def test_a_console_that_fails_or_exits_costs_one_warning_and_a_signal_passes(tmp_path, caplog, end):
    trackers = Trackers(config(), tmp_path)
    trackers.others["the console"].show_replies = leave_with(end)
    with pytest.raises(SignalExit) if isinstance(end, SignalExit) else nullcontext():
        trackers.use("the console", lambda console: console.show_replies(None))
    with trackers.pause():
        pass
    trackers.log(1, {**METRICS, "iteration": 1})
    trackers.close()
    wanted = [] if isinstance(end, SignalExit) else ["the console has failed and is not used any more"]
    assert failed(caplog) == wanted


# -- one training, one curve


def test_tensorboard_shows_a_redone_iteration_once(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for done, iterations in ((0, range(1, 7)), (4, range(5, 10)), (8, range(9, 13))):
        cut_metrics(tmp_path / "metrics.jsonl", done)
        trackers = Trackers(config(use_tensorboard=True), tmp_path, done)
        for iteration in iterations:
            trackers.log(iteration, {**METRICS, "iteration": iteration, "objective/score": iteration + done / 100})
        trackers.close()
    events = accumulators.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    points = [(event.step, round(event.value, 2)) for event in events.Scalars("objective/score")]
    assert points == [
        *((i, i) for i in (1, 2, 3, 4)),
        *((i, i + 0.04) for i in (5, 6, 7, 8)),
        *((i, i + 0.08) for i in (9, 10, 11, 12)),
    ]


@pytest.mark.parametrize(
    ("package", "key", "start"),
    [("wandb", "use_wandb", PPOAgent.train), ("tensorboard", "use_tensorboard", smoke)],
    ids=["train", "smoke"],
)
def test_a_tracker_that_is_not_installed_is_told_before_anything_is_loaded(package, key, start, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    check_packages(settings())
    for place in ("agent.load_models", "agent.read_source", "agent.build_reward"):
        monkeypatch.setattr(f"rlhf_dialog.runs.{place}", lambda *_: pytest.fail("something was loaded"))
    agent = PPOAgent(settings(experiment_name="x", run_dir="~/runs", **{key: True}))
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(agent.run_folder) == "/home/ada/runs/x"
    with pytest.raises(UserError, match=f"pip install {package}"):
        start(agent)
    assert list(tmp_path.iterdir()) == []


def gain_of(iteration):
    gain = {"objective/gain": iteration / 100, "objective/gain_se": 0.01, "objective/score_se": 0.1}
    return METRICS | gain | {"iteration": iteration, "episodes": 64 * iteration}


def test_the_console_says_when_it_is_the_first_iteration_that_a_score_is_compared_with(tmp_path, capsys):
    trackers = Trackers(config(), tmp_path)
    for iteration in (1, 2):
        trackers.log(iteration, gain_of(iteration) | {"objective/gain": math.nan, "objective/score": iteration / 4})
    trackers.close()
    assert "since iteration 1 +0.250" in capsys.readouterr().out


def test_the_sums_behind_the_gain_are_in_metrics_jsonl_alone(tmp_path, wandb):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    keys = config(use_tensorboard=True, use_wandb=True)
    trackers = Trackers(keys, tmp_path, wandb=open_wandb(keys, tmp_path))
    for iteration in (1, 2):
        trackers.log(iteration, gain_of(iteration) | {"gain_sums/N": 64.0, "gain_sums/part/D": 0.5})
    trackers.close()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [(line["gain_sums/N"], line["gain_sums/part/D"]) for line in lines] == [(64.0, 0.5)] * 2
    events = accumulators.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for names in (wandb.runs[0].names, set(events.Tags()["scalars"])):
        assert {"objective/gain", "objective/score"} <= names
        assert not [name for name in names if name.startswith("gain_sums")]


def sums_of(iteration):
    """10 prompts with one reply each, near to the reference until the last iteration; each has gained its iteration / 100."""
    n = {"N": 10, "P": 10, "W": 10.0, "WW": 10.1, "kl": 90.0 if iteration == 14 else 4.0}
    of_reward = {"D": 0.0, "A": -iteration / 10, "DD": 10.0, "AA": 10.0, "DA": 9.9, "DW": 0.0, "AW": 0.0}
    return {f"gain_sums/{name}": value for name, value in (n | of_reward).items()}


def test_the_console_shows_the_gain_of_ten_iterations_also_after_a_resume(tmp_path, capsys):
    """Of earlier runs that have no sums, too; the change of the score where the policy is far from the reference."""
    for kind, sums in (("old", lambda _: {}), ("new", sums_of)):
        shown = []
        for parts in ([(0, range(1, 15))], [(0, range(1, 9)), (8, range(9, 15))]):
            folder = tmp_path / f"{kind} {len(parts)}"
            folder.mkdir()
            for done, iterations in parts:
                trackers = Trackers(config(), folder, done)
                for iteration in iterations:
                    trackers.log(iteration, gain_of(iteration) | sums(iteration))
                trackers.close()
            shown.append(capsys.readouterr().out.splitlines())
        assert shown[0] == shown[1]
        assert "gain" not in shown[0][0]
        found = {"old": ["gain +0.085", "gain +0.095"], "new": ["gain +0.085", "since iteration 1"]}  # 4 to 13, 5 to 14
        assert all(words in line for words, line in zip(found[kind], shown[0][-2:], strict=True))
