"""The display of a policy's run: lines of the log, and on a terminal a live line."""

import io

import pytest
from rich.console import Console

from rlhf_dialog.task_oriented.runs import console as policy_console
from rlhf_dialog.task_oriented.runs.console import PolicyConsole

ITERATION = {"iteration": 3, "dialogues": 41, "success": 0.75, "reward": 6.5, "turns": 8.25, "FPS": 812.4}
EVALUATION = {"eval/success": 0.5, "eval/reward": 1.25}
RULES = {"eval/handcrafted_success": 0.875, "eval/handcrafted_reward": 9.0}


@pytest.mark.parametrize(
    ("metrics", "lines"),
    [
        (ITERATION, ["iteration 3  dialogues 41  success 0.750  reward 6.50  turns 8.2  812 turns a second"]),
        (EVALUATION, ["evaluation of iteration 3: success 0.500, reward 1.25"]),
        (EVALUATION | RULES, ["evaluation of iteration 3: success 0.500, reward 1.25 (handcrafted: 0.875, 9.00)"]),
        ({"time/sample": 1.0}, []),
    ],
)
def test_lines_where_nobody_watches(metrics, lines, caplog):
    console = PolicyConsole(live=True)  # there is no terminal
    with caplog.at_level("INFO", logger="rlhf_dialog"):
        console.log(3, metrics)
        console.advance(0.5)
    with console.pause():
        console.close()
    assert [record.getMessage() for record in caplog.records] == lines


def test_a_live_line_on_a_terminal(monkeypatch, caplog):
    shown = io.StringIO()
    monkeypatch.setattr(
        policy_console, "Console", lambda stderr: Console(file=shown, force_terminal=True, width=150, stderr=False)
    )
    console = PolicyConsole(live=True)
    with caplog.at_level("INFO", logger="rlhf_dialog"):
        console.log(3, ITERATION)
    console.advance(0.25)
    console.close()
    assert "iteration 3  dialogues 41  success 0.750" in shown.getvalue()
    assert "25%" in shown.getvalue()
    assert not caplog.records
