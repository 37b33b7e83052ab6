"""ROUGE and BLEU of responses against their references, by rouge-score and sacrebleu."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUGE_KINDS = ("rouge1", "rougeLsum")
BLEU_ORDER = 4
Array = NDArray[np.float64]


def rouge(references: Sequence[str], response: str) -> dict[str, float]:
    """F-measures in [0, 1] with Porter stems, each against its best reference (Lin 2004). A text is one sentence."""
    scores = _rouge_scorer().score_multi(list(references), response)
    return {kind: float(scores[kind].fmeasure) for kind in ROUGE_KINDS}


def bleu_counts(references: Sequence[str], response: str) -> list[int]:
    """The counts that BLEU sums over a corpus: 4 of matched n-grams, 4 of all n-grams, length, closest reference length."""
    score = _bleu_scorer().sentence_score(response, list(references))
    return [*score.counts, *score.totals, score.sys_len, score.ref_len]


def corpus_bleu(sums: Array) -> Array:
    """Corpus BLEU in [0, 1] (Papineni et al. 2002, smoothed as sacrebleu does by default) of summed `bleu_counts` (..., 10)."""
    flat = sums.reshape(-1, 2 * BLEU_ORDER + 2)
    return np.array([_bleu(row) for row in flat], dtype=np.float64).reshape(sums.shape[:-1])


def _bleu(row: Array) -> float:
    from sacrebleu.metrics import BLEU

    counts = [int(number) for number in row]
    correct, total, (length, wanted) = counts[:BLEU_ORDER], counts[BLEU_ORDER:-2], counts[-2:]
    return min(BLEU.compute_bleu(correct, total, sys_len=length, ref_len=wanted, smooth_method="exp").score / 100, 1.0)


@cache
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE_KINDS), use_stemmer=True)


@cache
def _bleu_scorer() -> Any:
    from sacrebleu.metrics import BLEU

    return BLEU(tokenize="intl", effective_order=True)  # the order changes no count
