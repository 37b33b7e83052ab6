"""Measures of texts by hand, F1 against a slow one, and BLEU of summed counts against the library's own of a corpus."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sacrebleu.metrics import BLEU

from rlhf_dialog import NLPVecInfo
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.metrics.acts import act_counts, macro_f1
from rlhf_dialog.metrics.overlap import bleu_counts, corpus_bleu, rouge
from rlhf_dialog.metrics.text import blocked_distinct_n, copied_from, distinct_n, others
from rlhf_dialog.rewards.meteor import meteor
from tests.parts.processes import output_of


@pytest.mark.slow
def test_the_libraries_are_imported_only_when_used():
    code = (
        "import sys, rlhf_dialog.evaluation.measure, rlhf_dialog.runs.agent; "
        "print(sorted({'rouge_score', 'sacrebleu'} & set(sys.modules)))"
    )
    assert output_of("-c", code).strip() == "[]"


def slow_macro_f1(classes, acts):
    scores = []
    for act in sorted(set(acts) | {c + 1 for c in classes}):
        both = sum(c + 1 == act == a for c, a in zip(classes, acts, strict=True))
        found, wanted = sum(c + 1 == act for c in classes), sum(a == act for a in acts)
        precision, recall = both / found if found else 0, both / wanted if wanted else 0
        scores.append(2 * precision * recall / (precision + recall) if both else 0.0)
    return sum(scores) / len(scores)


def test_macro_f1_agrees_with_precision_and_recall():
    rng = random.Random(5)
    for size in (1, 2, 6, 50):
        classes, acts = rng.choices(range(4), k=size), rng.choices(range(1, 5), k=size)
        assert float(macro_f1(act_counts(classes, acts).sum(axis=0))) == pytest.approx(slow_macro_f1(classes, acts))
    inform = act_counts([0] * 6, [1, 1, 1, 2, 3, 4]).sum(axis=0)  # accuracy 1/2; F1 of inform 2/3, of the others 0
    assert float(macro_f1(inform)) == pytest.approx(2 / 3 / 4)


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


def test_rouge_is_that_of_the_best_reference():
    """cat sat (stems of cats, sat) in 3 words against 4: F = 2 * 2 / 7; their longest common subsequence is 1."""
    assert rouge(["sat there for a very long time", "the cat sat down"], "sat cats slowly") == {
        "rouge1": pytest.approx(4 / 7),
        "rougeLsum": pytest.approx(2 / 7),
    }


WORDS = ["the", "cat's", "cats", "sat", "on", "a", "mat", "walking", "slowly", ",", "."]


def corpus(seed, size=40):
    """Replies, one of them empty, and one to three references of each."""
    rng = random.Random(seed)

    def text():
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))

    return ["", *(text() for _ in range(size - 1))], [[text() for _ in range(rng.randint(1, 3))] for _ in range(size)]


def bleu_of(replies, references):
    """By the library, which wants the first references of all replies, then the second ones or None, and so on."""
    streams = [[texts[n] if n < len(texts) else None for texts in references] for n in range(3)]
    return BLEU(tokenize="intl").corpus_score(replies, streams).score / 100


def test_bleu_of_summed_counts_is_that_of_the_corpus_for_any_number_of_sums():
    sums, expected = [], []
    for seed, size in enumerate((1, 2, 5, 40, 40, 40)):
        replies, references = (column[-size:] for column in corpus(seed))
        counts = [bleu_counts(r, reply) for r, reply in zip(references, replies, strict=True)]
        sums.append(np.sum(counts, axis=0, dtype=float))
        expected.append(bleu_of(replies, references))
    assert corpus_bleu(np.stack(sums).reshape(2, 3, 10)).ravel().tolist() == pytest.approx(expected)
    assert min(expected) == 0 < 0.1 < max(expected)
    assert float(corpus_bleu(sums[0])) == pytest.approx(expected[0])
    punctuation = bleu_counts(["I'm here <EOU>"], "I'm here <EOU>")  # I ' m here < EOU >
    assert punctuation == [7, 6, 5, 4, 7, 6, 5, 4, 7, 7]


def test_distinct_n_by_hand():
    for texts, n, expected in (
        (["the cat the cat"], 1, 2 / 4),
        (["the cat the cat"], 2, 2 / 3),  # the cat, cat the, the cat
        (["the cat", "the dog"], 1, 3 / 4),  # all texts together, not the mean of each
        (["The cat", "the CAT"], 2, 1 / 2),
        (["hello", ""], 2, 0.0),
        ([], 1, 0.0),
        (["a b", "c"], 2, 1.0),  # no bigram across two texts
    ):
        assert distinct_n(texts, n) == pytest.approx(expected)


def test_blocks_are_equal_and_the_rest_is_left_out():
    texts = ["a b", "a c", "x x", "x y", "left out entirely"]
    assert blocked_distinct_n(texts, 1, block=2) == [3 / 4, 2 / 4]
    assert blocked_distinct_n(texts, 2, block=2) == [1.0, 1.0]
    assert blocked_distinct_n(texts[:3], 1, block=4) == [pytest.approx(4 / 6)]  # the only block may be small
    assert blocked_distinct_n(texts[:4], 1, block=4) == [5 / 8]
    assert blocked_distinct_n(["a"] * 250, 1) == [1 / 100, 1 / 100]


def test_others_are_one_step_further_in_a_cycle_that_the_seed_draws():
    for count in (2, 3, 10, 101):
        forward, back = others(count, 5), others(count, 5, step=-1)
        assert sorted(forward) == list(range(count))
        assert all(i != j for i, j in enumerate(forward))
        assert [back[j] for j in forward] == list(range(count))
    cycle = list(range(5))
    random.Random(3).shuffle(cycle)
    assert [others(5, 3)[position] for position in cycle] == [*cycle[1:], cycle[0]]


def test_copied_from_counts_bigrams_of_any_of_the_turns():
    turns = ["Do you like tea ?", "Only with milk ."]
    assert copied_from(turns, "you like tea with milk") == pytest.approx(3 / 4)  # not "tea with"
    assert copied_from(turns, "? Only") == 0  # no turn has both words
    assert copied_from([], "you like") == copied_from(["a b"], "b a") == copied_from(["a b"], "a") == 0
    assert copied_from(["Do you like tea ?"], "YOU like coffee ?") == pytest.approx(1 / 3)


class FakeWordNet:
    def synsets(self, word):
        synonyms = {"car": ["car", "auto", "motor_car"]}.get(word, [])
        lemmas = [SimpleNamespace(name=lambda lemma=lemma: lemma) for lemma in synonyms]
        return [SimpleNamespace(lemmas=lambda: lemmas)] if lemmas else []


@pytest.mark.parametrize(
    ("reference", "response", "expected"),
    [
        # 6 matches in 1 chunk: 1 - 0.5 / 6^3
        ("the cat sat on the mat", "The cat sat on the mat", 0.9976851852),
        # P = R = 2/3, 2 chunks of 2 matches: 2/3 * (1 - 0.5)
        ("the cat sat", "the dog sat", 1 / 3),
        # P = 1, R = 1/2: F = 0.5 / (0.9 + 0.05); 1 chunk of 2 matches: 1 - 0.5 / 8
        ("a b c d", "a b", 0.4934210526),
        # all three match, the verb by its stem: 1 - 0.5 / 27
        ("he walks home", "he walked home", 0.9814814815),
        ("yes", "no", 0.0),
        ("hello .", "", 0.0),
        ("", "hello .", 0.0),
    ],
)
def test_meteor_by_hand(reference, response, expected):
    assert meteor([reference], response, None) == pytest.approx(expected, abs=1e-9)


def test_synonyms_by_hand():
    reference, response = "my auto is red", "my car is red"
    assert meteor([reference], response, FakeWordNet()) == pytest.approx(1 - 0.5 / 4**3)
    # without: P = R = 3/4, 2 chunks of 3 matches
    assert meteor([reference], response, None) == pytest.approx(0.75 * (1 - 0.5 * (2 / 3) ** 3))


def test_meteor_takes_the_best_reference():
    reply, references = "the cat sat", ["a house", "the cat sat", "the cat"]
    best = max(meteor([reference], reply, None) for reference in references)
    assert meteor(references, reply, None) == best > 0.9
