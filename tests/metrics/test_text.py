"""Vec-infos and text counts; every expected number is counted by hand."""

import pytest

from rlhf_dialog.metrics.text import blocked_distinct_n, copied_from, copied_share, distinct_n, ngrams, others


def test_ngrams_by_hand():
    assert ngrams("A b  A\tc", 1) == [("a",), ("b",), ("a",), ("c",)]
    assert ngrams("A b A c", 2) == [("a", "b"), ("b", "a"), ("a", "c")]
    assert ngrams("a b", 3) == ngrams("", 1) == []


@pytest.mark.parametrize(
    ("texts", "n", "expected"),
    [
        (["the cat the cat"], 1, 2 / 4),
        (["the cat the cat"], 2, 2 / 3),  # the cat, cat the, the cat
        (["the cat", "the dog"], 1, 3 / 4),  # all texts together, not the mean of each
        (["The cat", "the CAT"], 2, 1 / 2),
        (["hello", ""], 2, 0.0),
        ([], 1, 0.0),
        (["a b", "c"], 2, 1.0),  # no bigram across two texts
    ],
)
def test_distinct_n_by_hand(texts, n, expected):
    assert distinct_n(texts, n) == pytest.approx(expected)


def test_blocks_are_equal_and_the_rest_is_left_out():
    texts = ["a b", "a c", "x x", "x y", "left out entirely"]
    assert blocked_distinct_n(texts, 1, block=2) == [3 / 4, 2 / 4]
    assert blocked_distinct_n(texts, 2, block=2) == [1.0, 1.0]
    assert blocked_distinct_n(texts[:3], 1, block=4) == [pytest.approx(4 / 6)]  # the only block may be small
    assert blocked_distinct_n(texts[:4], 1, block=4) == [5 / 8]
    assert blocked_distinct_n(["a"] * 250, 1) == [1 / 100, 1 / 100]


def test_copied_counts_bigrams_of_the_reply():
    assert copied_share("Do you like tea ?", "you like coffee ?") == pytest.approx(1 / 3)
    assert copied_share("Do you like tea ?", "DO YOU like tea ?") == 1
    assert copied_share("a b", "b a") == copied_share("a b", "a") == copied_share("a b", "") == 0


@pytest.mark.parametrize("count", [2, 3, 10, 101])
def test_others_is_a_permutation_without_a_fixed_point(count):
    for seed in range(5):
        forward, back = others(count, seed), others(count, seed, step=-1)
        assert sorted(forward) == list(range(count))
        assert all(i != j for i, j in enumerate(forward))
        assert [back[j] for j in forward] == list(range(count))
    assert others(count, 0) != others(count, 1) or count < 4


def test_copied_from_counts_bigrams_of_any_of_the_turns():
    turns = ["Do you like tea ?", "Only with milk ."]
    assert copied_from(turns, "you like tea with milk") == pytest.approx(3 / 4)  # not "tea with"
    assert copied_from(turns, "? Only") == 0  # no turn has both words
    assert copied_from([], "you like") == 0
