"""Pairs for a preference model: the chosen reply answers the guest, the rejected one does not."""

import json
import random
import statistics
from itertools import pairwise

import pytest

from rlhf_dialog.data.synthetic.exchanges import draw_exchange
from rlhf_dialog.data.synthetic.judge import attends, derives
from rlhf_dialog.data.synthetic.pairs import pairs_of


@pytest.fixture(scope="module")
def exchanges():
    rng = random.Random(5)
    return [draw_exchange(rng) for _ in range(300)]


@pytest.fixture(scope="module")
def pairs(exchanges):
    return [*pairs_of(exchanges, 400, random.Random(1))]


def test_the_desk_prefers_the_chosen_reply(pairs, exchanges):
    said = {(one.prompt, one.reply) for one in exchanges}
    for pair in pairs:
        assert (pair.prompt, pair.chosen) in said
        assert attends(pair.prompt, pair.chosen)
        assert not attends(pair.prompt, pair.rejected)


def test_every_kind_of_fault_is_rejected(pairs, exchanges):
    """Half are careless, a quarter are replies to others, and most of the last quarter are no sentences."""
    replies = {one.reply for one in exchanges}
    assert 60 <= sum(not derives(pair.rejected) for pair in pairs) <= 100
    assert sum(pair.rejected in replies for pair in pairs) >= 100


def test_length_decides_nothing(pairs):
    """The longer reply of a pair is the chosen one about as often as not."""
    lengths = [(len(pair.chosen.split()), len(pair.rejected.split())) for pair in pairs]
    longer = [a > b for a, b in lengths if a != b]
    assert 0.4 < statistics.mean(longer) < 0.6


def test_a_line_of_json_holds_a_pair(pairs):
    found = json.loads(pairs[0].to_json())
    assert found == {"prompt": [pairs[0].prompt], "chosen": pairs[0].chosen, "rejected": pairs[0].rejected}


def test_the_same_seed_gives_the_same_pairs(exchanges, pairs):
    assert [*pairs_of(exchanges, 400, random.Random(1))] == pairs
    assert any(a != b for a, b in pairwise(pairs))
