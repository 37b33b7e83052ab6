"""What readers see of an evaluation: JSON without NaN, samples, and the same numbers in both tables."""

import json
import math

import pytest
from rich.console import Console

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.replies import Replies
from rlhf_dialog.evaluation.report import finite, markdown, metric_tables, replies_text, verdict_line


def interval(mean, low=None, high=None):
    return {"mean": mean, "low": low, "high": high}


RESULT = {
    "metrics": {"score": interval(1.5, 1.25, 1.75), "meteor": interval(None)},
    "sweep": {"best of 2": {"score": interval(1.75, 1.5, 2.0), "meteor": interval(None)}},
    "baselines": {"true_replies": {"score": interval(2.0, 1.0, 3.0), "meteor": interval(0.5, 0.25, 0.75)}},
    "settings": {"notes": ["What an interval leaves out.", "Who judges."]},
}
PROMPTS = [Dialogue([f"{i} ?"], reference=f"{i} .", act=1, meta={"index": i}) for i in range(8)]


def answers(word: str) -> Replies:
    return Replies([Dialogue(p.turns, response=f"{word} {i}") for i, p in enumerate(PROMPTS)], [2] * 8)


def test_numbers_that_json_does_not_have_become_null():
    found = finite({"a": math.nan, "b": [{"c": -math.inf, "d": 0.5}], "e": "text", "f": 3})
    assert found == {"a": None, "b": [{"c": None, "d": 0.5}], "e": "text", "f": 3}


def test_the_table_of_a_document():
    assert markdown(RESULT).splitlines() == [
        "| system | score | meteor |",
        "|---|---|---|",
        "| metrics | 1.500 [1.250, 1.750] | - |",
        "| best of 2 | 1.750 [1.500, 2.000] | - |",
        "| true_replies | 2.000 [1.000, 3.000] | 0.500 [0.250, 0.750] |",
        "",
        "What an interval leaves out.",
        "",
        "Who judges.",
    ]


def test_the_table_of_a_terminal_has_intervals_for_the_agents_alone():
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for table in metric_tables(RESULT, 100):
        console.print(table)
    text = console.export_text()
    assert all(number in text for number in ("1.500", "[1.250", "1.750]", "2.000", "0.500"))
    assert "3.000" not in text


def test_a_line_for_each_prompt_with_every_reply():
    lines = [json.loads(line) for line in replies_text(PROMPTS, {"agent": answers("ja")}).splitlines()]
    assert [line["index"] for line in lines] == list(range(8))
    assert lines[3]["prompt"] == ["3 ?"]
    assert lines[3]["replies"] == {"agent": {"response": "ja 3", "truncated": False}}


def scores(**rows):
    return {name: {"score": interval(mean)} for name, mean in rows.items()}


@pytest.mark.parametrize(
    ("low", "high", "word"), [(0.46, 0.61, "better"), (0.0, 0.0, "no clear difference"), (-0.9, -0.2, "worse")]
)
def test_the_verdict_comes_with_the_nearest_baseline(low, high, word):
    """Neither the agent's own rows nor those of references are baselines."""
    rows = scores(after=1.12, before=0.58)
    sweep = scores(**{"after, best of 4": 1.3, "before, best of 4": 0.9, "before, mean logit shift": 1.03})
    result = {**rows, "difference": {"score": interval(0.54, low, high)}, "sweep": sweep}
    result["baselines"] = scores(true_replies=1.4, random_reference=1.2, constant_reply=None, repeat_last_turn=0.2)
    assert verdict_line(result) == (
        f"{word}: +0.540 [{low:+.3f}, {high:+.3f}] of score, to 1.120; nearest baseline: before, mean logit shift (1.030)"
    )
