"""Which wrong replies and contexts a batch holds, by text."""

import math

import pytest
import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.training.supervised.relevance.pairs import batch_of, near_prompts, number_pairs
from tests.parts.relevance_models import letter_model

DIALOGUES = [["a b", "c", "d e", "f"], ["g h", "c", "i"], ["a b j", "k", "l m"]]
WEIGHT = 30.0


def pairs_of(dialogues=DIALOGUES):
    return [
        Dialogue(turns[max(0, i - 3) : i], response=turns[i], meta={"dialogue": number})
        for number, turns in enumerate(dialogues)
        for i in range(1, len(turns))
    ]


@pytest.fixture
def pairs():
    return number_pairs(pairs_of(), letter_model().table(), seed=0)


def texts_of(pairs, numbers):
    names = list(pairs.table.numbers)
    return [[names[n] for n in row] if isinstance(row, list) else names[row] for row in numbers.tolist()]


def test_what_follows_a_reply(pairs):
    """The next turn of the dialogue; at its end, the reply to a near prompt."""
    assert texts_of(pairs, pairs.replies) == ["c", "d e", "f", "c", "i", "k", "l m"]
    near = texts_of(pairs, pairs.replies[pairs.near[:, 0]])
    assert texts_of(pairs, pairs.following) == ["d e", "f", near[2], "i", near[4], "l m", near[6]]


def test_near_prompts_share_words_and_are_of_other_dialogues(pairs):
    assert pairs.near[0, 0] == 5  # "a b" and "a b j"
    assert pairs.near[5, 0] == 0
    assert all(pairs.dialogues[near] != pairs.dialogues[row] for row, near in enumerate(pairs.near[:, 0]))
    again = near_prompts(pairs.table, pairs.contexts, pairs.dialogues, seed=0)
    assert torch.equal(again, pairs.near)


def weights_of(weights, texts):
    """{text: its weights in the row} of a row; 0 where it does not count."""
    found = {}
    for weight, text in zip(weights.tolist(), texts, strict=True):
        found.setdefault(str(text), []).append(round(math.exp(weight), 3))
    return found


def test_the_wrong_replies_of_a_batch(pairs):
    torch.manual_seed(0)
    batch = batch_of(pairs, torch.tensor([2, 3]), WEIGHT)
    replies = texts_of(pairs, batch.replies)
    assert replies[:2] == ["f", "c"]
    assert replies[4:10] == ["d e", "g h", "c", "", "a b", ""]  # last turns, the turns before them, older ones
    assert len(replies) == 10
    first, second = (weights_of(row, replies) for row in batch.reply_weights)
    assert first["d e"][-1] == WEIGHT  # its own last turn
    assert (first["f"][0], first["g h"][-1]) == (1, 1)
    assert first["c"][-1] == WEIGHT  # its own turn before the last
    assert (first["a b"], second["a b"]) == ([WEIGHT], [1])  # its own turn before that
    assert second["g h"][-1] == WEIGHT
    assert (second["d e"][-1], second["c"][0]) == (1, 1)
    assert set(second["c"][1:]) == {0}  # its own reply under another name
    assert set(first[""]) == set(second[""]) == {0}  # no turn


def test_the_wrong_contexts_of_a_batch(pairs):
    batch = batch_of(pairs, torch.tensor([0, 4]), WEIGHT)
    contexts = texts_of(pairs, batch.contexts)
    assert contexts[:2] == [["a b", "", ""], ["c", "g h", ""]]
    assert contexts[4:6] == [["c", "a b", ""], ["i", "c", "g h"]]  # the reply was just said
    assert contexts[6] == ["d e", "c", "a b"]  # and answered
    assert contexts[7][1:] == ["i", "c"]
    assert contexts[8:] == contexts[:2]  # there is no older turn
    assert batch.replies.shape == (10,)
    row = batch.context_weights.exp()
    assert row[0, [0, 4, 6]].tolist() == pytest.approx([1, WEIGHT, WEIGHT])
    assert row[1, [1, 5, 7]].tolist() == pytest.approx([1, WEIGHT, WEIGHT])
    assert row[0, [1, 5, 7]].tolist() == [1, 1, 1]
    assert (row[0, 8], row[1, 9]) == (0, 0)


def test_the_reply_was_said_in_place_of_an_older_turn():
    """Of a context of five turns, each of the three before the last two: once repeated as reply, once replaced by it."""
    turns = ["a", "b", "c", "d", "e", "f"]
    pair = Dialogue(turns[:5], response="f", meta={"dialogue": 0})
    pairs = number_pairs(
        [pair, Dialogue(["g"], response="h", meta={"dialogue": 1})], letter_model(context_size=5).table(), 0
    )
    found = set()
    for seed in range(40):
        torch.manual_seed(seed)
        batch = batch_of(pairs, torch.tensor([0, 1]), WEIGHT)
        older, context = texts_of(pairs, batch.replies)[8], texts_of(pairs, batch.contexts)[8]
        assert context == ["f" if turn == older else turn for turn in turns[4::-1]]
        assert (batch.reply_weights.exp()[0, 8], batch.context_weights.exp()[0, 8]) == (pytest.approx(WEIGHT),) * 2
        found.add(older)
    assert found == {"a", "b", "c"}


def test_a_context_with_the_same_reply_may_be_right(pairs):
    batch = batch_of(pairs, torch.tensor([0, 3, 1]), WEIGHT)  # "c" answers both
    assert batch.context_weights[0, :3].tolist() == [0, -math.inf, 0]
    assert batch.reply_weights[1, :3].tolist() == [-math.inf, 0, 0]


def test_contexts_of_one_turn_hold_no_turn_before_the_last():
    table = letter_model(context_size=1).table()
    pairs = number_pairs(pairs_of(), table, seed=0)
    batch = batch_of(pairs, torch.tensor([1, 4]), WEIGHT)
    assert torch.isinf(batch.reply_weights[:, 6:10]).all()
    assert torch.isinf(batch.context_weights[:, 6:10]).all()
    assert batch.context_weights[0, 4].exp() == pytest.approx(WEIGHT)


def test_word_salad_counts_as_a_wrong_reply():
    table = letter_model("convolution").table()
    pairs = number_pairs(pairs_of(), table, 0, with_salads=True)
    batch = batch_of(pairs, torch.tensor([6, 1]), WEIGHT, 8.0)  # "l m" and "d e"
    replies = texts_of(pairs, batch.replies)
    salads = texts_of(pairs, pairs.salads)
    assert replies[10:14] == [salads[6][0], salads[1][0], salads[6][1], salads[1][1]]
    assert salads[6][0] in ("m l", "")  # the same order is no wrong reply
    weights = batch.reply_weights.exp()
    wanted = [[8, 1, 8, 1], [1, 8, 1, 8]]
    for row, some in zip(weights, wanted, strict=True):
        kept = [0 if text == "" else weight for text, weight in zip(replies[10:14], some, strict=True)]
        assert row[10:14].tolist() == pytest.approx(kept)


def test_a_bag_gets_no_shuffled_replies():
    kinds = ("bag", "convolution")
    shapes = {kind: number_pairs(pairs_of(), letter_model(kind).table(), 0, True).salads.shape[1] for kind in kinds}
    assert shapes == {"bag": 1, "convolution": 2}
