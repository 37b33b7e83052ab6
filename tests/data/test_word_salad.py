"""Word salad, word for word."""

import random
from collections import Counter

import pytest

from rlhf_dialog.data.word_salad import exchange_words, rarest, salads, shuffle_words

TURNS = ["d e f g", "h i j"]


def test_the_rarest_words_are_each_named_once_and_marks_are_none():
    counts = Counter(["a", "a", "a", "b", "b", "c"])
    assert rarest(["c b a .", "a ? z"], counts) == "z c b a"
    assert rarest(["a b c d e f g h i j"], Counter(["a", "b"])) == "c d e f g h i j"


def test_a_shuffled_reply_has_the_same_words():
    assert sorted(shuffle_words("a b c d", random.Random(0)).split()) == list("abcd")
    assert len({shuffle_words("a b c d", random.Random(seed)) for seed in range(50)}) > 10


@pytest.mark.parametrize(("num_words", "num_exchanged"), [(1, 1), (3, 2), (9, 4), (0, 0)])
def test_a_third_of_the_words_is_exchanged_and_at_least_one(num_words, num_exchanged):
    words = exchange_words(" ".join(["a"] * num_words), ["b", "c"], random.Random(0)).split()
    assert (len(words), words.count("a")) == (num_words, num_words - num_exchanged)


def test_salads_are_the_shuffled_reply_and_one_of_five_mixtures():
    counts, reply = Counter(["k", "l", "m", "n", "q"]), "k l m n"
    drawn = [salads(reply, TURNS, counts, random.Random(seed)) for seed in range(200)]
    assert {tuple(sorted(first.split())) for first, _ in drawn} == {("k", "l", "m", "n"), ()}  # the same order is none
    mixed = {second for _, second in drawn}
    assert {"h i f g", "h d i e j f g", "d e f g h i j"} <= mixed
    others = [text.split() for text in mixed if text not in ("h i f g", "h d i e j f g", "d e f g h i j", "")]
    assert others
    assert all(sum(a != b for a, b in zip(words, reply.split(), strict=True)) <= 2 for words in others)
    assert reply not in mixed


def test_a_reply_of_one_word_cannot_be_shuffled():
    assert salads("k", ["a"], Counter("k"), random.Random(0))[0] == ""
