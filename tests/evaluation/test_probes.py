"""The fixed probes, word for word, and what the search finds and asks for."""

import random

import numpy as np

from rlhf_dialog.data.dialogue import CHAT_TEMPLATE, Dialogue
from rlhf_dialog.evaluation.probes import (
    CLIMBED,
    GROWN,
    LENGTHS,
    RETRIEVED,
    Budget,
    Edits,
    Training,
    fixed_probes,
    search,
)
from tests.parts.audits import talks

PROMPTS = [Dialogue(["a b c", "d e f g", "h i j"], reference="k l m n", act=1), Dialogue(["o p"], reference="q", act=2)]
COMMON, RARE = Dialogue(["x"], reference="a a d", act=1), Dialogue(["x"], reference="h why", act=2)
TRAINING = Training([COMMON, COMMON, RARE, Dialogue(["x"])])


def texts(separator="<EOU>", max_words=20):
    return fixed_probes(PROMPTS, TRAINING, separator, max_words, seed=0)


def test_copies_and_mixtures_are_those_of_the_turns_there_are():
    found = texts()
    assert found["copy of turn -1"] == ["h i j", "o p"]
    assert found["copy of turn -3"] == ["a b c", None]
    # the first half of the last, the second of the other
    assert found["halves of the last two turns"] == ["h i f g", None]
    assert found["words of the last two turns"] == ["h d i e j f g", None]
    assert found["random reply"] == ["q", "k l m n"]
    assert found["empty"] == ["", ""]
    assert sorted(found["shuffled true reply"][0].split()) == ["k", "l", "m", "n"]
    names = set(fixed_probes(PROMPTS[1:], TRAINING, "<EOU>", 20, seed=0))  # what no prompt has is left out
    assert {name for name in found if "turns" in name or "-2" in name or "-3" in name} & names == set()


def test_the_rarest_words_are_at_most_eight_and_each_once():
    # in the training replies `a` occurs four times, `d` twice, `h` once, the others never
    assert texts()["context's rarest words"] == ["b c e f g i j h", "o p"]


def test_constants_are_the_most_common_replies():
    found = texts()
    assert found["most common reply"] == found["act inform"] == ["a a d"] * 2
    assert found["act question"] == ["h why"] * 2
    assert "act directive" not in found  # training has none


def test_marks_are_alone_and_at_the_end_and_the_separator_is_one_of_them():
    assert texts("|")["| alone"] == ["|", "|"]
    assert texts("|")["| appended"] == ["k l m n |", "q |"]
    assert texts()["<EOU> appended"] == ["k l m n <EOU>", "q <EOU>"]
    assert not any(CHAT_TEMPLATE in name for name in texts(CHAT_TEMPLATE))


def test_no_text_is_longer_than_a_reply_can_be():
    found = texts(max_words=3)
    longest = max(len(text.split()) for some in found.values() for text in some if text is not None)
    assert longest == 3
    assert found["</s> appended"] == ["k l </s>", "q </s>"]
    assert [length for length in LENGTHS if f"repeated word, {length}" in found] == [1, 2]
    assert found["repeated word, 2"] == ["a a", "a a"]
    assert found["typical words, 2"] == ["a d", "a d"]


TALKS = Training(talks(60, seed=1))
BUDGET = Budget(prompts=4, replies=10, rounds=6, candidates=30)


def test_it_climbs_to_the_highest_score_and_never_falls():
    """The best reply of six words is known: `honey` six times."""
    seen = []

    def totals(prompts, texts):
        scores = np.asarray([np.nan if "bring" in text else float(text.split().count("honey")) for text in texts])
        seen.append(np.nanmax(scores.reshape(4, -1), axis=1))
        return scores

    found = search(talks(8), TALKS, Budget(4, 10, 60, 60), totals, max_words=6, seed=0)
    assert found[CLIMBED] == found[GROWN] == ["honey honey honey honey honey honey"] * 4
    assert [text.split().count("honey") for text in found[RETRIEVED]] == seen[0].tolist()
    assert not any("bring" in text for some in found.values() for text in some)  # what has no score is never the best


def test_a_change_is_measured_against_the_best_so_far():
    """A reward that pays the first texts 10, then 1, 5 and 10 in turn: no change is better, also not than the one before."""
    rounds = iter([10, *[1, 5, 10] * 2, 10, *[1, 5, 10] * 2])
    found = search(talks(8), TALKS, BUDGET, lambda _, texts: np.full(len(texts), next(rounds)), 24, seed=0)
    assert found[CLIMBED] == found[RETRIEVED]
    assert found[GROWN] == [""] * 4


def test_the_reward_is_asked_as_often_as_the_budget_says():
    asked = []
    prompts = talks(8)
    search(prompts, TALKS, BUDGET, lambda some, texts: asked.extend(some) or np.zeros(len(texts)), 24, seed=0)
    assert len(asked) == BUDGET.size == 4 * (10 + 1 + 2 * 6 * 30)
    assert {id(one) for one in asked} == {id(one) for one in prompts[:4]}


def test_the_training_replies_are_different_and_at_most_as_long_as_a_reply():
    asked = []
    budget = Budget(1, 1000, 0, 1)
    search(talks(1), TALKS, budget, lambda _, texts: asked.extend(texts) or np.zeros(len(texts)), 4, seed=0)
    texts = asked[:-1]  # the last one is the empty reply
    assert len(texts) == len(set(TALKS.replies))
    assert {len(text.split()) for text in texts} == {4}


def test_a_change_is_of_one_word():
    edits = Edits(TALKS, 3, random.Random(0))
    kinds = {tuple(edits.change("a b c").split()) for _ in range(300)}
    assert {("b", "c"), ("a", "c"), ("a", "b")} < kinds
    replaced = [words for words in kinds if len(words) == 3]
    assert {len(words) for words in kinds} == {2, 3}  # no room for a fourth
    assert all(sum(a != b for a, b in zip(words, "abc", strict=True)) == 1 for words in replaced)
    assert {len(edits.change("").split()) for _ in range(20)} == {1}
    assert {len(edits.change("a").split()) for _ in range(60)} == {0, 1, 2}
