"""Pairs for a preference model: the chosen reply attends to its prompt, the rejected one does not."""

import json
import random
import statistics
from itertools import pairwise

import pytest

from rlhf_dialog.data.made_up.dialogues import generate_dialogue
from rlhf_dialog.data.made_up.judge import attends, derives, is_careless
from rlhf_dialog.data.made_up.pairs import pairs_of


@pytest.fixture(scope="module")
def dialogues():
    rng = random.Random(5)
    return [generate_dialogue(rng, ["hotel"]) for _ in range(80)]


@pytest.fixture(scope="module")
def pairs(dialogues):
    return [*pairs_of(dialogues, 350, random.Random(1))]


def test_the_grammar_prefers_the_chosen_reply(pairs, dialogues):
    said = {(*turns[max(0, at - 2) : at], turns[at]) for turns, _ in dialogues for at in range(1, len(turns))}
    for pair in pairs:
        assert (*pair.prompt, pair.chosen) in said
        assert attends(pair.prompt[-1], pair.chosen)
        assert not attends(pair.prompt[-1], pair.rejected)


def test_every_kind_of_fault_is_rejected(pairs, dialogues):
    replies = {turn for turns, _ in dialogues for turn in turns}
    assert (
        90 <= sum(is_careless(pair.rejected) for pair in pairs) <= 120
    )  # two of seven, and where nothing else is found
    assert 80 <= sum(not derives(pair.rejected) for pair in pairs) <= 105  # garbled
    assert 40 <= sum(pair.rejected in pair.prompt for pair in pairs) <= 60
    assert sum(pair.rejected in replies and pair.rejected not in pair.prompt for pair in pairs) >= 85


def test_length_decides_nothing(pairs):
    """The longer reply of a pair is the chosen one about as often as not."""
    lengths = [(len(pair.chosen.split()), len(pair.rejected.split())) for pair in pairs]
    longer = [a > b for a, b in lengths if a != b]
    assert 0.4 < statistics.mean(longer) < 0.6


def test_a_line_of_json_holds_a_pair(pairs):
    found = json.loads(pairs[0].to_json())
    assert found == {"prompt": pairs[0].prompt, "chosen": pairs[0].chosen, "rejected": pairs[0].rejected}


def test_the_same_seed_gives_the_same_pairs(dialogues, pairs):
    assert [*pairs_of(dialogues, 350, random.Random(1))] == pairs
    assert any(a != b for a, b in pairwise(pairs))
