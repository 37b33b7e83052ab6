"""What is measured of users, by hand."""

import math

import numpy as np
import pytest

from experiments.users.fidelity import UserTurns, compared, labels_of, measured, tokens, words

REAL = [
    UserTurns(["I want Thai food.", "What's the phone?", "Bye."], [["inform food"], ["request phone"], ["other"]]),
    UserTurns(["cheap , please", "Bye !"], [["inform price", "inform food"], ["other"]]),
]


def test_the_text_handling():
    assert " ".join(tokens("It’s 5 o'clock, isn't it?")) == "it ' s 5 o ' clock , isn ' t it ?"
    assert words("Well ... , it's Ü!") == ["well", "it", "s", "ü"]
    assert words("It is far , no ?") == words("it is FAR, no?")


def test_the_measures_by_hand():
    found = measured(REAL, labels_of(REAL, REAL))
    assert found.values["turns in a dialogue"].tolist() == [3, 2]
    assert found.values["words in a turn"].tolist() == [4, 4, 1, 2, 1]
    assert found.values["turns that ask"].tolist() == [0, 1, 0, 0, 0]
    assert found.values["turns that occur more than once"].tolist() == [0, 0, 1, 0, 1]
    assert found.values["turns with inform food"].tolist() == [1, 0, 0, 1, 0]
    assert found.values["turns with request phone"].tolist() == [0, 1, 0, 0, 0]
    assert found.values["turns with other"].tolist() == [0, 0, 1, 0, 1]
    assert found.values["distinct-1"].tolist() == [12 / 13]
    assert found.units["words in a turn"].tolist() == [0, 0, 0, 1, 1]
    assert found.statistic("words in a turn").point == 12 / 5


def test_differences_by_hand_and_the_largest_first():
    rng = np.random.default_rng(0)
    real = [UserTurns(["a b"] * int(n)) for n in rng.integers(1, 4, 50)]
    simulated = [UserTurns(["a b c ?"] * int(n)) for n in rng.integers(2, 5, 50)]
    found = compared(measured(real, []), measured(simulated, []))
    turns = found["turns in a dialogue"]
    sizes = [np.array([len(talk.turns) for talk in some]) for some in (real, simulated)]
    assert turns["difference"]["mean"] == pytest.approx(sizes[1].mean() - sizes[0].mean())
    assert turns["d"] == pytest.approx(
        (sizes[1].mean() - sizes[0].mean()) / math.sqrt((sizes[0].var() + sizes[1].var()) / 2)
    )
    standard_error = math.sqrt(sizes[0].var() / 50 + sizes[1].var() / 50)
    low, high = (turns["difference"]["mean"] + sign * 1.96 * standard_error for sign in (-1, 1))
    assert (turns["difference"]["low"], turns["difference"]["high"]) == pytest.approx((low, high), abs=0.08)
    assert found["words in a turn"]["d"] == math.inf  # each turn has one word more, without any spread
    assert list(found)[:3] == ["words in a turn", "turns that ask", "turns in a dialogue"]
    assert list(found)[-2:] in (["distinct-1", "distinct-2"], ["distinct-2", "distinct-1"])
