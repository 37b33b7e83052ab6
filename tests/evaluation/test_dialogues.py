"""What whole dialogues are worth, by hand."""

import math

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.dialogues import Played, cell, compare_dialogues, means, measure_dialogues, transcript


def dialogue(success, *replies, truncated=False):
    """A dialogue with these replies of the policy; between them the user says `so ?`."""
    found = Dialogue(["Hi ?"])
    for reply in replies:
        found = found.with_reply(reply).with_user_turn("so ?")
    found.truncated = truncated
    found.meta = {} if success is None else {"info": {"success": success, "goal": {"tea": "green"}}}
    return found


SOME = [Played(dialogue(True, "a b", "c d e f"), 18.0), Played(dialogue(False, "a b c", truncated=True), -1.0)]


def test_the_measures_by_hand():
    assert means(SOME) == {
        **{"success": 0.5, "reward": 8.5, "turns": 1.5, "words": 3.0, "truncated": 0.5},
        **{"distinct_1": pytest.approx(6 / 9), "distinct_2": pytest.approx(5 / 6)},  # of a b, c d e f, a b c
    }
    assert measure_dialogues(SOME)["reward"]["mean"] == 8.5


def test_success_that_no_info_tells_is_not_a_number():
    assert math.isnan(means([Played(dialogue(None, "a"), 0.0)])["success"])


def test_success_is_that_of_the_dialogues_that_say_it_and_they_are_counted():
    some = [*SOME, Played(dialogue(None, "a"), 0.0), SOME[0]]
    assert means(some)["success"] == pytest.approx(2 / 3)
    assert means(some)["success_of"] == measure_dialogues(some)["success"]["of"] == 3
    assert cell(measure_dialogues(some)["success"], "{:.2f}").startswith("0.67\n\\[")
    assert cell(measure_dialogues(some)["success"], "{:.2f}").endswith("]\nof 3 that say it")
    assert cell(measure_dialogues(some[2:3])["success"], "{:.2f}") == "not said"
    assert cell({"mean": 1.0, "low": 0.0, "high": 2.0}, "{:.1f}") == "1.0\n\\[0.0, 2.0]"
    assert cell(None, "{:.1f}") == ""


def test_differences_are_those_of_the_same_dialogues():
    better = [Played(one.dialogue, one.reward + 2) for one in SOME]
    assert compare_dialogues(SOME, better)["reward"] == {"mean": 2.0, "low": 2.0, "high": 2.0}


def test_a_dialogue_as_lines():
    whole = Dialogue(["Well .", "Hi ?"], meta={"info": {"success": True}}).with_reply("Ho .").with_user_turn("Bye .")
    assert transcript(whole) == ["agent: Well .", "user: Hi ?", "agent: Ho .", "user: Bye .", "(success: True)"]
    assert transcript(Dialogue(["Hi ?"]).with_reply("Ho .")) == ["user: Hi ?", "agent: Ho ."]
