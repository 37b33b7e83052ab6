"""Vec-infos and text counts; every expected number is counted by hand."""

from types import SimpleNamespace

import pytest
import torch

from rlhf_dialog import NLPVecInfo, VecInfo, VecInfoFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.metrics.text import blocked_distinct_n, distinct_n, ngrams


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


def test_nlp_vec_info_by_hand():
    rollout = SimpleNamespace(
        dialogues=[Dialogue([], response="yes I do"), Dialogue([], response=""), Dialogue([], response="yes I go now")],
        rewards=torch.tensor([[1.0, -0.5, 0.0], [0.25, 0.25, 1.0], [0.0, 0.0, -3.0]]),
    )
    found = NLPVecInfo()(rollout)
    assert found == {
        "response/words": pytest.approx(7 / 3),
        "response/distinct_2": pytest.approx(4 / 5),  # yes I, I do, yes I, I go, go now
        "objective/episode_reward": pytest.approx((0.5 + 1.5 - 3.0) / 3),
    }
    assert all(type(value) is float for value in found.values())


def test_a_vec_info_of_ones_own_registers_like_the_built_in(monkeypatch):
    monkeypatch.setattr(VecInfoFactory, "classes", dict(VecInfoFactory.classes))

    @VecInfoFactory.register("Mine")
    class Mine(VecInfo):
        def __init__(self, scale: float = 2.0):
            self.scale = scale

        def __call__(self, rollout):
            return {"my/number": self.scale}

    assert VecInfoFactory.create("Mine", {"scale": 3.0})(None) == {"my/number": 3.0}
    assert type(VecInfoFactory.create("NLPVecInfo", {})) is NLPVecInfo
    assert VecInfo()(None) == {}
