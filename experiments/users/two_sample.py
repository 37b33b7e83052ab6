"""The classifier two-sample test (Lopez-Paz & Oquab 2017, arXiv 1610.06545): can a classifier distinguish two kinds of users?

scikit-learn's logistic regression on the words and pairs of words of a turn, or of all turns of a dialogue. N texts, F features.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.users.fidelity import Array, UserTurns, words
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.intervals import Statistic, interval

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

FOLDS = 5
NUM_NGRAMS = 2000  # the most frequent ones
LEAST_TEXTS = 3  # in which an n-gram must occur
NUM_TELLING = 10
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Sample:
    """N texts: their n-grams, other features (N, k), whether each is simulated, and its dialogue, counted over both kinds."""

    ngrams: list[set[str]]
    numbers: Array
    simulated: NDArray[np.bool_]
    dialogues: Numbers


def check_scikit_learn() -> None:
    """Raises UserError where scikit-learn is not installed."""
    if find_spec("sklearn") is None:
        raise UserError('this command needs scikit-learn; install it: pip install -e ".[experiments]"')


def distinguished(
    real: Sequence[UserTurns],
    simulated: Sequence[UserTurns],
    seed: int = 0,
    after_fold: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The balanced accuracy on held-out `turns` and `dialogues` with 95 % intervals, and `telling` n-grams of turns.

    The mean of both kinds' shares that are recognised: .5 is chance, however many texts a kind has. Each text is judged by a
    classifier that has seen no turn of its dialogue (5 folds). `after_fold` is called ten times. At least 10 dialogues with
    turns of each kind are needed.
    """
    turns, dialogues = _of_turns(real, simulated), _of_dialogues(real, simulated)
    return {
        "turns": _accuracy(turns, seed, after_fold),
        "dialogues": _accuracy(dialogues, seed, after_fold),
        "telling": _telling(turns),
    }


def ngrams_of(text: str) -> set[str]:
    """The words of a text and its pairs of words; the place before the first word and after the last one counts as a word.

    >>> sorted(ngrams_of("Is it?"))
    ['< is', '?', '? >', 'is', 'is it', 'it', 'it ?']
    """
    found = words(text)
    padded = ["<", *found, ">"]
    return {*found, *(f"{a} {b}" for a, b in pairwise(padded))}


def _of_turns(real: Sequence[UserTurns], simulated: Sequence[UserTurns]) -> Sample:
    rows = [
        (ngrams_of(turn), [_log_length(turn)], side, number)
        for number, (side, talk) in enumerate(_both(real, simulated))
        for turn in talk.turns
    ]
    return _sample(rows)


def _of_dialogues(real: Sequence[UserTurns], simulated: Sequence[UserTurns]) -> Sample:
    rows = [
        (
            set().union(*map(ngrams_of, talk.turns)),
            [np.log(len(talk.turns)), float(np.mean([_log_length(turn) for turn in talk.turns]))],
            side,
            number,
        )
        for number, (side, talk) in enumerate(_both(real, simulated))
    ]
    return _sample(rows)


def _both(real: Sequence[UserTurns], simulated: Sequence[UserTurns]) -> list[tuple[bool, UserTurns]]:
    """All dialogues with turns, and whether each is simulated."""
    return [(side, talk) for side, talks in ((False, real), (True, simulated)) for talk in talks if talk.turns]


def _sample(rows: list[tuple[set[str], list[float], bool, int]]) -> Sample:
    ngrams, numbers, sides, dialogues = zip(*rows, strict=True)
    return Sample(list(ngrams), np.array(numbers), np.array(sides), np.array(dialogues, dtype=np.int64))


def _log_length(turn: str) -> float:
    return float(np.log1p(len(words(turn))))


def _accuracy(sample: Sample, seed: int, after_fold: Callable[[], None]) -> dict[str, float]:
    folds = _folds(sample, seed)
    right = np.zeros(len(sample.simulated), dtype=bool)
    for fold in range(FOLDS):
        held_out = folds == fold
        vocabulary = _vocabulary([grams for grams, out in zip(sample.ngrams, held_out, strict=True) if not out])
        model = _fitted(_features(sample, vocabulary, ~held_out, ~held_out), sample.simulated[~held_out])
        guessed = model.predict(_features(sample, vocabulary, ~held_out, held_out))
        right[held_out] = guessed == sample.simulated[held_out]
        after_fold()
    rows = np.stack([right & ~sample.simulated, ~sample.simulated, right & sample.simulated, sample.simulated], axis=1)
    return _widened(interval(Statistic(rows.astype(np.float64), _balanced, sample.dialogues), seed))


def _widened(bounds: dict[str, float]) -> dict[str, float]:
    """The interval for a cross-validated share, whose training sets overlap: Nadeau & Bengio 2003, equation 9."""
    wider = ((1 / FOLDS + 1 / (FOLDS - 1)) / (1 / FOLDS)) ** 0.5
    mean = bounds["mean"]
    low, high = (mean + wider * (bounds[key] - mean) for key in ("low", "high"))
    return {"mean": mean, "low": max(low, 0.0), "high": min(high, 1.0)}


def _balanced(sums: Array) -> Array:
    """The mean of the two shares that are right, of counts (..., 4)."""
    with np.errstate(invalid="ignore"):
        return (sums[..., 0] / sums[..., 1] + sums[..., 2] / sums[..., 3]) / 2


def _folds(sample: Sample, seed: int) -> Numbers:
    """The fold of each text: dialogues are dealt out, those of each kind by themselves."""
    rng, fold_of = np.random.default_rng(seed), np.zeros(sample.dialogues.max() + 1, dtype=np.int64)
    for side in (False, True):
        own = np.unique(sample.dialogues[sample.simulated == side])
        fold_of[rng.permutation(own)] = np.arange(len(own)) % FOLDS
    return fold_of[sample.dialogues]


def _vocabulary(ngrams: Sequence[set[str]]) -> dict[str, int]:
    counts = Counter(gram for grams in ngrams for gram in sorted(grams))
    kept = [gram for gram, count in counts.most_common(NUM_NGRAMS) if count >= LEAST_TEXTS]
    return {gram: number for number, gram in enumerate(kept)}


def _features(
    sample: Sample, vocabulary: dict[str, int], known: NDArray[np.bool_], rows: NDArray[np.bool_]
) -> "csr_matrix":
    """Of the texts `rows`: which n-grams they have, and their numbers in standard deviations of the `known` texts; (N, F)."""
    from scipy.sparse import csr_matrix, hstack

    texts = [
        [vocabulary[gram] for gram in sorted(grams) if gram in vocabulary]
        for grams, is_wanted in zip(sample.ngrams, rows, strict=True)
        if is_wanted
    ]
    places = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    columns = np.array([column for text in texts for column in text], dtype=np.int64)
    ngrams = csr_matrix((np.ones(len(columns)), (places, columns)), shape=(len(texts), len(vocabulary)))
    mean, spread = sample.numbers[known].mean(axis=0), sample.numbers[known].std(axis=0)
    numbers = (sample.numbers[rows] - mean) / np.maximum(spread, 1e-9)
    return hstack([ngrams, csr_matrix(numbers)], format="csr")


def _fitted(features: "csr_matrix", simulated: NDArray[np.bool_]) -> "LogisticRegression":
    """The classifier, for which both kinds of texts weigh the same in sum."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(class_weight="balanced", max_iter=1000, tol=1e-6).fit(features, simulated)


def _telling(sample: Sample) -> list[dict[str, Any]]:
    """The n-grams with the most weight, by their spread, and in which share of the turns of each kind they are."""
    vocabulary, everything = _vocabulary(sample.ngrams), np.ones(len(sample.ngrams), dtype=bool)
    features = _features(sample, vocabulary, everything, everything)
    weights = _fitted(features, sample.simulated).coef_[0][: len(vocabulary)]
    shares = [
        np.asarray(features[sides].mean(axis=0)).ravel()[: len(vocabulary)]
        for sides in (~sample.simulated, sample.simulated)
    ]
    mean = np.clip((shares[0] + shares[1]) / 2, 0, 1)
    order = np.argsort(-np.abs(weights) * np.sqrt(mean * (1 - mean)), kind="stable")[:NUM_TELLING]
    names = list(vocabulary)
    return [{"ngram": names[i], "real": float(shares[0][i]), "simulated": float(shares[1][i])} for i in order]
