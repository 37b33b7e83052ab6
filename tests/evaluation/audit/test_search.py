"""What the search finds, and what it asks for."""

import random

import numpy as np

from rlhf_dialog.evaluation.audit.probes import Budget, Edits, Training, search
from tests.parts.audits import talks

TRAINING = Training(talks(60, seed=1))
BUDGET = Budget(prompts=4, replies=10, rounds=6, candidates=30)


def test_it_climbs_to_the_highest_score_and_never_falls():
    """The best reply of six words is known: `honey` six times."""
    seen = []

    def totals(prompts, texts):
        scores = np.asarray([float(text.split().count("honey")) for text in texts])
        seen.append(scores.reshape(4, -1).max(axis=1))
        return scores

    found = search(talks(8), TRAINING, Budget(4, 10, 60, 60), totals, max_words=6, seed=0)
    assert found.climbed == found.grown == ["honey honey honey honey honey honey"] * 4
    assert [text.split().count("honey") for text in found.retrieved] == seen[0].tolist()


def test_a_change_is_measured_against_the_best_so_far():
    """A reward that pays the first texts 10, then 1 and 5 in turn: no change is better, also not than the one before."""
    rounds = iter([10, *[1, 5] * 3, 10, *[1, 5] * 3])
    found = search(talks(8), TRAINING, BUDGET, lambda _, texts: np.full(len(texts), next(rounds)), 24, seed=0)
    assert found.climbed == found.retrieved
    assert found.grown == [""] * 4


def test_the_reward_is_asked_as_often_as_the_budget_says():
    asked = []
    prompts = talks(8)
    search(prompts, TRAINING, BUDGET, lambda some, texts: asked.extend(some) or np.zeros(len(texts)), 24, seed=0)
    assert len(asked) == BUDGET.size == 4 * (10 + 1 + 2 * 6 * 30)
    assert {id(one) for one in asked} == {id(one) for one in prompts[:4]}


def test_what_has_no_score_is_never_the_best():
    def totals(prompts, texts):
        return np.asarray([np.nan if "bring" in text else len(text) / 100 for text in texts])

    found = search(talks(8), TRAINING, BUDGET, totals, 24, seed=0)
    assert not any("bring" in text for text in [*found.retrieved, *found.climbed, *found.grown])


def test_the_training_replies_are_different_and_at_most_as_long_as_a_reply():
    asked = []
    budget = Budget(1, 1000, 0, 1)
    search(talks(1), TRAINING, budget, lambda _, texts: asked.extend(texts) or np.zeros(len(texts)), 4, seed=0)
    texts = asked[:-1]  # the last one is the empty reply
    assert len(texts) == len(set(TRAINING.replies))
    assert {len(text.split()) for text in texts} == {4}


def test_a_change_is_of_one_word():
    edits = Edits(TRAINING, 3, random.Random(0))
    kinds = {tuple(edits.change("a b c").split()) for _ in range(300)}
    assert {("b", "c"), ("a", "c"), ("a", "b")} < kinds
    replaced = [words for words in kinds if len(words) == 3]
    assert {len(words) for words in kinds} == {2, 3}  # no room for a fourth
    assert all(sum(a != b for a, b in zip(words, "abc", strict=True)) == 1 for words in replaced)
    assert {len(edits.change("").split()) for _ in range(20)} == {1}
    assert {len(edits.change("a").split()) for _ in range(60)} == {0, 1, 2}
