from collections import Counter
from functools import cache
from random import Random

import numpy as np
import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import Domain
from rlhf_dialog.task_oriented.world.acts import USER_INTENTS, Act
from rlhf_dialog.task_oriented.world.error_channel import ErrorChannel, levenshtein, neighbours
from tests.parts.small_domain import DATA, small_domain

DOMAIN = small_domain()
TURN = [Act("inform", "tea", "green"), Act("inform", "area", "north")]
NULL = [Act("null")]


@cache
def lists(error_rate: float, turn=tuple(TURN), number: int = 2500):
    channel = ErrorChannel(DOMAIN, error_rate, Random(3))
    return [channel(list(turn)) for _ in range(number)]


def test_without_errors_the_turn_arrives_as_it_is_and_confidences_are_clipped():
    channel = ErrorChannel(DOMAIN, 0.0, Random(3))
    before = channel.rng.getstate()
    assert channel(TURN) == [(TURN, 1.0)]
    assert channel.rng.getstate() == before

    class Extreme(Random):
        def gauss(self, mean, deviation):
            return 9.0 if mean > 0.5 else -9.0  # one of six is above

    hypotheses = ErrorChannel(DOMAIN, 0.3, Extreme(1))(TURN)
    assert hypotheses[0][1] == pytest.approx(0.99 / (0.99 + 5 * 0.01))


@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_confidences_sum_to_1_no_hypothesis_comes_twice_and_the_first_is_as_often_wrong_as_the_rate_says(rate):
    for hypotheses in lists(rate):
        assert sum(score for _, score in hypotheses) == pytest.approx(1)
        assert 2 <= len(hypotheses) <= 6
        turns = [turn for turn, _ in hypotheses if turn != NULL]
        assert all(turn not in turns[:number] for number, turn in enumerate(turns))
    wrong = [hypotheses for hypotheses in lists(rate) if hypotheses[0][0] != TURN]
    assert len(wrong) / 2500 == pytest.approx(rate, abs=0.025)


@pytest.mark.slow
def test_lists_are_as_long_as_in_dstc2():
    """Set 1, right: 0.264 of 0.796 have one hypothesis (and null); set 3: 0.147 of 0.984. In a wrong list of set 3 the true
    turn is at position 2 in 0.116 of 0.152."""
    for rate, share in ((0.15, 0.264 / 0.796), (0.3, 0.147 / 0.984)):
        right = [hypotheses for hypotheses in lists(rate) if hypotheses[0][0] == TURN]
        assert sum(len(h) == 2 for h in right) / len(right) == pytest.approx(share, abs=0.03)
    wrong = [[turn for turn, _ in h] for h in lists(1.0) if len(h) == 6]
    places = Counter(turns.index(TURN) for turns in wrong if TURN in turns)
    assert set(places) <= {1, 2, 3, 4}
    assert places[1] / sum(places.values()) == pytest.approx(0.116 / 0.152, abs=0.1)


@pytest.mark.parametrize(("rate", "right", "wrong"), [(0.15, 0.755, 0.635), (0.3, 0.821, 0.689)])
def test_confidences_are_those_of_the_two_sets(rate, right, wrong):
    """The mean share of the first of six normal numbers, with the benchmark's moments and clipped to .01 and .99, by numpy."""
    for is_right, expected in ((True, right), (False, wrong)):
        scores = [h[0][1] for h in lists(rate) if (h[0][0] == TURN) is is_right]
        assert np.mean(scores) == pytest.approx(expected, abs=0.02)


def test_values_slots_and_types_are_confused_and_a_goodbye_is_suppressed():
    """.5 values, .3 slots, .2 types, in a domain in which every slot has values."""
    domain = Domain("tea", "cafe", DATA["constraints"], ["name", "tea", "area"], DATA["entities"])
    channel, kinds = ErrorChannel(domain, 1.0, Random(1)), Counter()
    for _ in range(3000):
        (act,) = channel._confuse([Act("inform", "tea", "green")])[:1]
        kinds["type" if act.intent != "inform" else "value" if act.slot == "tea" else "slot"] += 1
        assert act != Act("inform", "tea", "green")
    assert [kinds[kind] / 3000 for kind in ("value", "slot", "type")] == pytest.approx([0.5, 0.3, 0.2], abs=0.03)
    for turn in (TURN, [Act("ack")], [Act("deny", "tea", "green"), Act("inform", "tea", "black")]):
        heard = {act.intent for h in lists(1.0, tuple(turn), 400) for hypothesis, _ in h for act in hypothesis}
        assert "bye" not in heard
    assert [Act("bye")] in [turn for turn, _ in ErrorChannel(DOMAIN, 0.001, Random(0))([Act("bye")])]


def test_neighbours_by_hand():
    """Of ack: deny has distance 4, bye 3, affirm 5; weights 1/d as a share, plus .15."""
    assert [levenshtein(a, b) for a, b in (("", "abc"), ("kitten", "sitting"), ("ack", "deny"))] == [3, 3, 4]
    near, weights = neighbours("ab", ("ab", "abc", "xyzab", "abcd"))
    assert near == ["abc", "abcd", "xyzab"]
    total = 1 + 1 / 2 + 1 / 3
    assert weights == pytest.approx([1 / total + 0.15, 1.5 / total + 0.3, 1 + 0.45])
    assert len(neighbours("ack", USER_INTENTS)[0]) == 6


@pytest.mark.parametrize("rate", [15, -0.1])
def test_a_rate_that_is_not_a_probability(rate):
    with pytest.raises(UserError, match=f"error_rate is {rate}"):
        ErrorChannel(DOMAIN, rate, Random(0))
