"""METEOR against numbers by hand and a slow second implementation; WordNet found, refused and left out."""

import random
from fractions import Fraction
from types import SimpleNamespace

import pytest
from nltk.stem.porter import PorterStemmer
from nltk.translate.meteor_score import meteor_score

from rlhf_dialog.metrics.meteor import meteor

SYNONYMS = {"car": ["car", "auto", "motor_car"], "glad": ["glad", "happy"]}
WORDS = "the a cat cats sat sitting sits on walk walked walking walks car auto glad happy ! . ,"


class FakeWordNet:
    def synsets(self, word):
        lemmas = [SimpleNamespace(name=lambda lemma=lemma: lemma) for lemma in SYNONYMS.get(word, [])]
        return [SimpleNamespace(lemmas=lambda: lemmas)] if lemmas else []


class NoWordNet:
    def synsets(self, word):
        return []


def slow_meteor(reference, response, synonyms):
    """Lavie & Agarwal 2007 on words split at spaces; in each stage the last response word takes the last free match.

    As in nltk the synonym stage sees stems: the stem of a response word is looked up, and its lemmas are compared with
    stems of the reference ("happy" has the stem "happi", which is no lemma, so "glad" never finds it).
    """
    stem = PorterStemmer().stem
    ref, hyp = reference.lower().split(), response.lower().split()
    stages = [
        lambda h, r: h == r,
        lambda h, r: stem(h) == stem(r),
        lambda h, r: stem(r) in [word for word in synonyms.get(stem(h), []) if "_" not in word],
    ]
    matched = {}
    for stage in stages:
        for i in reversed(range(len(hyp))):
            for j in reversed(range(len(ref))):
                if i not in matched and j not in matched.values() and stage(hyp[i], ref[j]):
                    matched[i] = j
    if not matched:
        return 0.0
    precision, recall = Fraction(len(matched), len(hyp)), Fraction(len(matched), len(ref))
    mean = precision * recall / (Fraction(9, 10) * precision + Fraction(1, 10) * recall)
    chunks = sum(i == 0 or matched.get(i - 1) != matched[i] - 1 for i in matched)
    return float(mean * (1 - Fraction(1, 2) * Fraction(chunks, len(matched)) ** 3))


def random_pairs(count):
    chance = random.Random(7)
    for _ in range(count):
        yield tuple(" ".join(chance.choices(WORDS.split(), k=chance.randint(1, 12))) for _ in range(2))


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
    ],
)
def test_by_hand(reference, response, expected):
    assert meteor(reference, response, None) == pytest.approx(expected, abs=1e-9)


def test_synonyms_by_hand():
    reference, response = "my auto is red", "my car is red"
    assert meteor(reference, response, FakeWordNet()) == pytest.approx(1 - 0.5 / 4**3)
    # without: P = R = 3/4, 2 chunks of 3 matches
    assert meteor(reference, response, None) == pytest.approx(0.75 * (1 - 0.5 * (2 / 3) ** 3))


@pytest.mark.parametrize(("wordnet", "synonyms"), [(None, {}), (FakeWordNet(), SYNONYMS)])
def test_equals_slow_implementation(wordnet, synonyms):
    for reference, response in random_pairs(400):
        expected = slow_meteor(reference, response, synonyms)
        assert meteor(reference, response, wordnet) == pytest.approx(expected, abs=1e-12), (reference, response)


def test_cached_stemmer_gives_identical_scores():
    for reference, response in random_pairs(200):
        uncached = meteor_score([reference.split()], response.split(), stemmer=PorterStemmer(), wordnet=NoWordNet())
        assert meteor(reference, response, None) == uncached
        assert meteor(reference, response, None) == uncached


@pytest.mark.parametrize(("reference", "response"), [("hello .", ""), ("hello .", "  "), ("", "hello ."), ("", "")])
def test_empty_text_scores_zero(reference, response):
    assert meteor(reference, response, None) == 0.0


def test_meteor_takes_the_best_reference():
    reply, references = "the cat sat", ["a house", "the cat sat", "the cat"]
    best = max(meteor(reference, reply, None) for reference in references)
    assert meteor(references, reply, None) == best > 0.9
