"""ROUGE and BLEU against counting by hand and slow second implementations."""

import numpy as np
import pytest

from rlhf_dialog.metrics.overlap import bleu_counts, corpus_bleu, rouge
from tests.parts.slow_metrics import corpus, slow_bleu, slow_rouge


def test_rouge_agrees_with_counting_by_hand():
    """cat sat (stems of cats, sat) in 3 words against 4: F = 2 * 2 / 7; their longest common subsequence is 1."""
    assert rouge(["the cat sat down"], "sat cats slowly") == {
        "rouge1": pytest.approx(4 / 7),
        "rougeLsum": pytest.approx(2 / 7),
    }


def test_rouge_agrees_with_a_slow_one():
    for reply, references in zip(*corpus(0), strict=True):
        assert rouge(references, reply) == pytest.approx(slow_rouge(references, reply))


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_bleu_of_summed_counts_agrees_with_a_slow_one(size):
    for seed in range(6):
        replies, references = (column[4 : 4 + size] for column in corpus(seed, 45))
        counts = np.array([bleu_counts(r, reply) for r, reply in zip(references, replies, strict=True)], dtype=float)
        assert float(corpus_bleu(counts.sum(axis=0))) == pytest.approx(slow_bleu(replies, references))


def test_bleu_takes_any_number_of_sums():
    replies, references = corpus(1)
    counts = np.array([bleu_counts(r, reply) for r, reply in zip(references, replies, strict=True)], dtype=float)
    sums = np.stack([counts.sum(axis=0), counts[:7].sum(axis=0)]).reshape(2, 1, 10)
    expected = [slow_bleu(replies, references), slow_bleu(replies[:7], references[:7])]
    assert corpus_bleu(sums).ravel().tolist() == pytest.approx(expected)


def test_bleu_splits_punctuation_from_letters():
    """International tokenizer: I ' m here < EOU > are 7 tokens."""
    counts = bleu_counts(["I'm here <EOU>"], "I'm here <EOU>")
    assert counts == [7, 6, 5, 4, 7, 6, 5, 4, 7, 7]
