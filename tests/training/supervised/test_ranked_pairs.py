"""Pairs that a reward ranks: given replies, sampled ones, pairs of the data; ties; a reward that prefers nothing."""

import pytest
import yaml

from rlhf_dialog.errors import UserError
from rlhf_dialog.training.supervised.preference_model import ranked_pairs
from rlhf_dialog.training.supervised.settings import RankingKeys
from tests.parts import tiny
from tests.parts.scalars import write_pairs


@pytest.fixture
def keys(tmp_path):
    """LengthMatch: the reply whose length is nearer to the reference's is better."""
    config = {"model_path": "unused", "env": {"args": {"data_path": "unused"}}, "reward_class": {"id": "LengthMatch"}}
    path = tmp_path / "rank.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return RankingKeys(rank_with=str(path), device="cpu", max_new_tokens=6)


def texts(pairs):
    return [(pair.chosen.response, pair.rejected.response) for pair in pairs]


def test_the_best_and_the_worst_of_the_given_replies(tmp_path, keys):
    rows = [
        {"prompt": "p", "reference": "one two three", "replies": ["a", "a b c", "a b"]},
        {"prompt": "q", "reference": "one", "replies": ["a b", "c d"]},  # a tie
    ]
    (pair,) = ranked_pairs(keys, write_pairs(tmp_path / "a.jsonl", rows), "train", "unused")
    assert texts([pair]) == [("a b c", "a")]
    assert (pair.prompt, pair.margin) == ("p", None)
    assert pair.where.endswith("a.jsonl, train, prompt 1")


def test_the_pairs_of_the_data_in_the_order_of_the_reward(tmp_path, keys):
    rows = [{"prompt": "p", "reference": "one two three", "chosen": "a", "rejected": "a b c"}]
    assert texts(ranked_pairs(keys, write_pairs(tmp_path / "a.jsonl", rows), "train", "unused")) == [("a b c", "a")]


@pytest.mark.slow
def test_two_sampled_replies_to_each_prompt(tmp_path, keys):
    tiny.gpt2(initializer_range=0.5).save_pretrained(tmp_path / "lm")
    tiny.byte_tokenizer().save_pretrained(tmp_path / "lm")
    rows = [{"prompt": f"p {i}", "reference": "one two"} for i in range(12)]
    data = write_pairs(tmp_path / "a.jsonl", rows)
    pairs = ranked_pairs(keys, data, "train", str(tmp_path / "lm"))
    assert pairs
    assert all(a != b for a, b in texts(pairs))
    assert texts(pairs) == texts(ranked_pairs(keys, data, "train", str(tmp_path / "lm")))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "p", "reference": "a", "replies": ["a b", "c d"]}, "rank_with: .* the same score"),
        ({"prompt": "p", "reference": "a", "replies": ["a"]}, "prompt 1: 'replies' must be a list of two"),
        ({"prompt": "p", "replies": ["a", "b"]}, "reference"),
        ({"prompt": "p", "reference": "a"}, "model_path: no such folder"),
    ],
)
def test_what_cannot_be_ranked(tmp_path, keys, row, words):
    with pytest.raises(UserError, match=words):
        ranked_pairs(keys, write_pairs(tmp_path / "a.jsonl", [row]), "train", "./nowhere")
