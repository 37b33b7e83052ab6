"""metrics.jsonl, the console and TensorBoard."""

import io
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import PartScore, Scores
from rlhf_dialog.runs.tracking import ConsoleTracker, JsonlTracker, Trackers, cut_metrics, last_iteration, read_metrics

METRICS = {
    "iteration": 3,
    "time_steps": 1200,
    "objective/score": 0.25,
    "objective/kl": 0.0312,
    "response/length": 11.5,
    "FPS": 812.4,
}


def config(**keys) -> Config:
    classes = {"env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}, "model_path": "m"}
    return Config.model_validate({**classes, **keys})


def test_every_line_is_strict_json_and_there_at_once(tmp_path):
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    tracker.log(1, {"iteration": 1, "a/b": 0.1, "nan": math.nan, "inf": math.inf, "neg": -math.inf})
    lines = (tmp_path / "m.jsonl").read_text(encoding="utf-8").splitlines()  # before close: flushed
    tracker.log(2, {"iteration": 2, "a/b": 1e-30})
    tracker.close()

    def refuse(text: str):
        raise AssertionError(f"{text} is not JSON")

    assert json.loads(lines[0], parse_constant=refuse) == {
        "iteration": 1,
        "a/b": 0.1,
        "nan": None,
        "inf": None,
        "neg": None,
    }
    assert read_metrics(tmp_path / "m.jsonl")[1] == {"iteration": 2, "a/b": 1e-30}


def test_numbers_of_numpy_and_torch_are_numbers(tmp_path):
    """What a vec-info of one's own returns is often no plain float."""
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    numpy = pytest.importorskip("numpy")
    tracker.log(1, {"iteration": 1, "a": numpy.float32(0.5), "b": torch.tensor(2.0), "c": numpy.int64(3)})
    tracker.close()
    assert read_metrics(tmp_path / "m.jsonl") == [{"iteration": 1, "a": 0.5, "b": 2.0, "c": 3}]


def test_a_file_that_exists_is_continued(tmp_path):
    for iteration in (1, 2):
        tracker = JsonlTracker(tmp_path / "m.jsonl")
        tracker.log(iteration, {"iteration": iteration})
        tracker.close()
    assert [row["iteration"] for row in read_metrics(tmp_path / "m.jsonl")] == [1, 2]


@pytest.mark.parametrize("tail", ["", '{"iteration": 4, "objec', '{"iteration"', "{", "\n"])
def test_a_resumed_run_keeps_the_whole_lines_up_to_its_checkpoint(tmp_path, tail):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f'{{"iteration": {i}, "x": null, "y": 0.1}}\n' for i in (1, 2, 3)) + tail, encoding="utf-8")
    cut_metrics(path, 2)
    assert path.read_text(encoding="utf-8") == (
        '{"iteration": 1, "x": null, "y": 0.1}\n{"iteration": 2, "x": null, "y": 0.1}\n'
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.jsonl"]
    cut_metrics(path, 0)
    assert path.read_text(encoding="utf-8") == ""


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        ([1, 2, 3], 3),
        ([1, 2, 4, 5], 2),
        ([1, 2, 2, 3], 2),
        ([2, 3], 0),
        ([], 0),
    ],
)
@pytest.mark.parametrize("tail", ["", '{"iteration": 4, "objec', "7\n", "{}\n"])
def test_how_far_the_metrics_reach(tmp_path, lines, last, tail):
    path = tmp_path / "m.jsonl"
    assert last_iteration(path) == 0
    path.write_text("".join(f'{{"iteration": {i}}}\n' for i in lines) + tail, encoding="utf-8")
    assert last_iteration(path) == last


def test_cutting_leaves_no_iteration_twice(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f'{{"iteration": {i}}}\n' for i in (1, 2, 3, 2, 3)), encoding="utf-8")
    cut_metrics(path, 2)
    assert [row["iteration"] for row in read_metrics(path)] == [1, 2]


def test_cutting_metrics_that_are_not_there_changes_nothing(tmp_path):
    cut_metrics(tmp_path / "m.jsonl", 2)
    assert list(tmp_path.iterdir()) == []


def console(tracker: ConsoleTracker, terminal: bool = False, width: int = 120) -> io.StringIO:
    """Let the tracker print into the returned buffer."""
    buffer = io.StringIO()
    tracker.console = Console(file=buffer, width=width, force_terminal=terminal, color_system=None)
    return buffer


def test_without_a_terminal_there_is_one_plain_line_per_log(capsys):
    tracker = ConsoleTracker(config())
    tracker.log(3, METRICS)
    tracker.advance(0.5)
    tracker.log(4, METRICS)
    tracker.close()
    out = capsys.readouterr().out
    assert "\x1b" not in out
    first, second = out.splitlines()
    assert " ".join(first.split()) == "iteration 3 reward 0.250 KL 0.031 FPS 812 length 11.5 tokens 1200"
    assert second.startswith("iteration 4")


def test_plain_lines_can_be_asked_for_on_a_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert ConsoleTracker(config()).live
    assert not ConsoleTracker(config(use_rich_handler=False)).live


class FakeRollout(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.dialogues)


def samples(texts: list[str], num_samples: int = 3, terminal: bool = False) -> str:
    """What the table shows of a rollout whose last turns, responses and references are `texts`."""
    n = len(texts)
    rollout: Any = FakeRollout(
        dialogues=[
            Dialogue([f"old {text}", text], response=text, reference=text, truncated=i == 0)
            for i, text in enumerate(texts)
        ],
        scores=torch.full((n,), 0.75),
        reward_scores=Scores(
            [0.75] * n, {"one": PartScore([1.0] * n, [0.5] * n, 0.1), "two": PartScore([0.25] * n, [0.25] * n, 0.1)}
        ),
    )
    tracker = ConsoleTracker(config())
    buffer = console(tracker, terminal)
    tracker.show_samples(rollout, 7, num_samples)
    return buffer.getvalue()


def test_the_table_shows_texts_scores_and_parts():
    shown = samples(["hello there", "good bye"])
    assert "iteration 7" in shown
    for word in ("last turn", "response", "reference", "score", "one", "two", "0.75", "1.00", "0.25"):
        assert word in shown
    assert shown.count("hello there") == 3  # last turn, response, reference
    assert shown.count("[cut]") == 1
    assert "old" not in shown


def test_the_table_spreads_over_the_rollout_and_takes_what_there_is():
    shown = samples([f"text{i}" for i in range(12)], num_samples=3)
    assert [f"text{i} " in shown for i in range(12)] == [i in (0, 4, 8) for i in range(12)]
    assert "text0" in samples(["text0"], num_samples=3)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "[/red] [bold] x",
        "[",
        "]",
        "[[x]]",
        "[/]",
        r"\[/red]",
        r"\\[/red]",
        "ends with \\",
        "[link=a]b",
        ":smile:",
        "�\x07",
        "",
    ],
)
def test_markup_in_a_text_is_shown_as_it_is(text, terminal):
    shown = samples([text, text], terminal=terminal)
    if text.isascii() and text.isprintable():
        assert text in shown


def test_all_places_at_their_intervals(tmp_path, capsys):
    trackers = Trackers(config(log_interval=2, use_tensorboard=True), tmp_path)
    for iteration in range(1, 6):
        trackers.log(iteration, {**METRICS, "iteration": iteration, "objective/score": iteration / 8})
    trackers.close()
    assert [row["iteration"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    printed = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["2", "4"]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    points = [(event.step, event.value) for event in events.Scalars("objective/score")]
    assert points == [(2, 0.25), (4, 0.5)]


def test_what_an_evaluation_found_goes_everywhere_at_once(tmp_path, capsys):
    trackers = Trackers(config(log_interval=4, use_tensorboard=True, eval_metric="zeal"), tmp_path)
    found = {f"eval/{name}": 0.5 for name in (*"abcdefgh", "zeal", "score")}
    for iteration in range(1, 5):
        trackers.log(iteration, METRICS | (found | {"time/eval": 2.0} if iteration == 3 else {}))
    trackers.close()
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert (
        lines[0] == "evaluation of iteration 3 score 0.500 zeal 0.500 a 0.500 b 0.500 c 0.500 d 0.500 e 0.500 f 0.500"
    )
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
    with tracker.paused():
        assert not live.is_started
    assert live.is_started == tracker.live
    tracker.log(2, {"eval/score": 0.125, "time/eval": 1.0})
    assert " ".join(buffer.getvalue().split()) == "evaluation of iteration 2 score 0.125"
    tracker.close()


def test_wandb_starts_only_when_asked(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr("rlhf_dialog.runs.tracking.WandbTracker", lambda *args: started.append(args))
    for keys in ({"wandb_entity": "team"}, {"use_wandb": True, "disable_wandb": True}, {}):
        Trackers(config(**keys), tmp_path).jsonl.close()
    assert started == []
    Trackers(config(use_wandb=True), tmp_path).jsonl.close()
    assert len(started) == 1


def test_a_full_disk_is_the_users_error(tmp_path, monkeypatch):
    trackers = Trackers(config(), tmp_path)

    class Full:
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(trackers.jsonl, "file", Full())
    with pytest.raises(UserError, match=r"cannot be written: .*No space left"):
        trackers.log(1, METRICS)
