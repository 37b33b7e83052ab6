"""The metrics of replies against slow second implementations, and as `evaluate.Metric` classes."""

import math
import random
import re
import socket
from collections import Counter

import evaluate
import numpy as np
import pytest
from nltk.stem.porter import PorterStemmer
from processes import output_of

from rlhf_dialog.errors import UserError
from rlhf_dialog.metrics.acts import act_counts, macro_f1
from rlhf_dialog.metrics.meteor import meteor
from rlhf_dialog.metrics.modules import Acts, Copied, Distinct, Meteor, Rouge, SacreBleu
from rlhf_dialog.metrics.overlap import bleu_counts, bleu_of, rouge
from rlhf_dialog.metrics.text import copied, others

WORDS = [
    "the",
    "cats",
    "cat",
    "sat",
    "sitting",
    "on",
    "a",
    "mat",
    "walking",
    "walked",
    "slowly",
    ",",
    ".",
    "houses",
    "house",
]


def text(rng: random.Random, longest: int = 9) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, longest)))


def corpus(seed: int, size: int = 40) -> tuple[list[str], list[list[str]]]:
    rng = random.Random(seed)
    replies = [text(rng) for _ in range(size)]
    replies[3] = ""
    return replies, [[text(rng) for _ in range(rng.randint(1, 3))] for _ in range(size)]


# ROUGE


def rouge_words(sentence: str) -> list[str]:
    stem = PorterStemmer().stem
    words = re.findall("[a-z0-9]+", sentence.lower())
    return [stem(word) if len(word) > 3 else word for word in words]


def lcs(a: list[str], b: list[str]) -> int:
    if not a or not b:
        return 0
    if a[-1] == b[-1]:
        return 1 + lcs(a[:-1], b[:-1])
    return max(lcs(a[:-1], b), lcs(a, b[:-1]))


def f_measure(hits: int, length: int, wanted: int) -> float:
    return 2 * hits / (length + wanted) if hits else 0.0


def slow_rouge(references: list[str], reply: str) -> dict[str, float]:
    best = {"rouge1": 0.0, "rougeLsum": 0.0}
    for reference in references:
        a, b = rouge_words(reply), rouge_words(reference)
        overlap = sum(min(a.count(word), b.count(word)) for word in set(a))
        best["rouge1"] = max(best["rouge1"], f_measure(overlap, len(a), len(b)))
        best["rougeLsum"] = max(best["rougeLsum"], f_measure(lcs(a, b), len(a), len(b)))
    return best


def test_rouge_agrees_with_counting_by_hand():
    """cat sat (stems of cats, sat) in 3 words against 4: F = 2 * 2 / 7; their longest common subsequence is 1."""
    assert rouge(["the cat sat down"], "sat cats slowly") == {
        "rouge1": pytest.approx(4 / 7),
        "rougeLsum": pytest.approx(2 / 7),
    }


def test_rouge_agrees_with_a_slow_one():
    for reply, references in zip(*corpus(0), strict=True):
        assert rouge(references, reply) == pytest.approx(slow_rouge(references, reply))


# BLEU


def slow_bleu(replies: list[str], references: list[list[str]]) -> float:
    """Papineni et al. 2002 on words split at spaces, with sacrebleu's default smoothing of empty orders."""
    matches, totals, length, wanted = [0] * 4, [0] * 4, 0, 0
    for reply, texts in zip(replies, references, strict=True):
        words = reply.split()
        length += len(words)
        wanted += min((abs(len(t.split()) - len(words)), len(t.split())) for t in texts)[1]
        for n in range(1, 5):
            grams = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
            allowed: Counter = Counter()
            for t in texts:
                other = t.split()
                allowed |= Counter(tuple(other[i : i + n]) for i in range(len(other) - n + 1))
            matches[n - 1] += sum((grams & allowed).values())
            totals[n - 1] += sum(grams.values())
    if not any(matches) or not all(totals):
        return 0.0
    halvings, log_sum = 1, 0.0
    for match, total in zip(matches, totals, strict=True):
        if not match:
            halvings *= 2
        log_sum += math.log(match / total if match else 1 / (halvings * total)) / 4
    return math.exp(min(0.0, 1 - wanted / length) + log_sum)


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_bleu_of_summed_counts_agrees_with_a_slow_one(size):
    for seed in range(6):
        replies, references = (column[4 : 4 + size] for column in corpus(seed, 45))
        counts = np.array([bleu_counts(r, reply) for r, reply in zip(references, replies, strict=True)], dtype=float)
        assert float(bleu_of(counts.sum(axis=0))) == pytest.approx(slow_bleu(replies, references))


def test_bleu_takes_any_number_of_sums():
    replies, references = corpus(1)
    counts = np.array([bleu_counts(r, reply) for r, reply in zip(references, replies, strict=True)], dtype=float)
    sums = np.stack([counts.sum(axis=0), counts[:7].sum(axis=0)]).reshape(2, 1, 10)
    expected = [slow_bleu(replies, references), slow_bleu(replies[:7], references[:7])]
    assert bleu_of(sums).ravel().tolist() == pytest.approx(expected)


def test_bleu_splits_punctuation_from_letters():
    """International tokenizer: I ' m here < EOU > are 7 tokens."""
    counts = bleu_counts(["I'm here <EOU>"], "I'm here <EOU>")
    assert counts == [7, 6, 5, 4, 7, 6, 5, 4, 7, 7]


# METEOR with several references, acts, copies, permutations


def test_meteor_takes_the_best_reference():
    reply, references = "the cat sat", ["a house", "the cat sat", "the cat"]
    best = max(meteor(reference, reply, None) for reference in references)
    assert meteor(references, reply, None) == best > 0.9


def slow_macro_f1(classes: list[int], acts: list[int]) -> float:
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


def test_always_one_act_has_a_low_f1():
    """Half the acts are inform: accuracy 0.5, F1 of inform 2/3, of the three others 0."""
    acts = [1, 1, 1, 2, 3, 4]
    assert float(macro_f1(act_counts([0] * 6, acts).sum(axis=0))) == pytest.approx(2 / 3 / 4)


def test_copied_counts_bigrams_of_the_reply():
    assert copied("Do you like tea ?", "you like coffee ?") == pytest.approx(1 / 3)
    assert copied("Do you like tea ?", "DO YOU like tea ?") == 1
    assert copied("a b", "b a") == copied("a b", "a") == copied("a b", "") == 0


@pytest.mark.parametrize("count", [2, 3, 10, 101])
def test_others_is_a_permutation_without_a_fixed_point(count):
    for seed in range(5):
        forward, back = others(count, seed), others(count, seed, step=-1)
        assert sorted(forward) == list(range(count))
        assert all(i != j for i, j in enumerate(forward))
        assert [back[j] for j in forward] == list(range(count))
    assert others(count, 0) != others(count, 1) or count < 4


# as evaluate.Metric


def test_the_classes_give_the_means_of_the_slow_metrics():
    replies, references = corpus(2)
    metrics = evaluate.combine([Rouge(), SacreBleu(), Distinct(), Meteor(meteor_wordnet="off", seed=3), Copied()])
    found = metrics.compute(predictions=replies, references=references, last_turns=[r[0] for r in references])
    slow = [slow_rouge(r, reply) for r, reply in zip(references, replies, strict=True)]
    assert found["rouge1"] == pytest.approx(sum(s["rouge1"] for s in slow) / 40)
    assert found["rougeLsum"] == pytest.approx(sum(s["rougeLsum"] for s in slow) / 40)
    assert found["sacrebleu"] == pytest.approx(slow_bleu(replies, references))
    words = [word for reply in replies for word in reply.split()]
    assert found["distinct_1"] == pytest.approx(len(set(words)) / len(words))
    own = [max(meteor(r, reply, None) for r in texts) for texts, reply in zip(references, replies, strict=True)]
    assert found["meteor"] == pytest.approx(sum(own) / 40)
    assert found["meteor_margin"] == pytest.approx(found["meteor"] - found["meteor_shuffled"])
    foreign = [
        max(meteor(r, reply, None) for r in references[i]) for i, reply in zip(others(40, 3), replies, strict=True)
    ]
    assert found["meteor_shuffled"] == pytest.approx(sum(foreign) / 40)
    assert set(found) == {
        "rouge1",
        "rougeLsum",
        "sacrebleu",
        "distinct_1",
        "distinct_2",
        "meteor",
        "meteor_shuffled",
        "meteor_margin",
        "copied",
    }


def test_batches_add_up_to_the_whole():
    replies, references = corpus(3)
    for metric in (Rouge(), SacreBleu()):
        whole = metric.compute(predictions=replies, references=references)
        for start in range(0, 40, 16):
            metric.add_batch(predictions=replies[start : start + 16], references=references[start : start + 16])
        assert metric.compute() == pytest.approx(whole)


def test_one_reference_may_be_a_text():
    replies, references = corpus(4)
    first = [texts[0] for texts in references]
    lists = [[reference] for reference in first]
    for metric in (Rouge(), SacreBleu(), Meteor(meteor_wordnet="off")):
        assert metric.compute(predictions=replies, references=first) == metric.compute(
            predictions=replies, references=lists
        )


def test_acts_are_numbers():
    found = Acts().compute(predictions=[0, 1, 2, 0], references=[1, 2, 4, 3])
    assert found == {
        "intent_accuracy": 0.5,
        "intent_macro_f1": pytest.approx(slow_macro_f1([0, 1, 2, 0], [1, 2, 4, 3])),
    }


def test_required_wordnet_is_a_user_error(monkeypatch, tmp_path):
    monkeypatch.setattr("nltk.data.path", [str(tmp_path)])
    with pytest.raises(UserError, match="WordNet"):
        Meteor(meteor_wordnet="require")


def test_what_cannot_be_measured_is_said():
    for metric in (Rouge(), SacreBleu(), Meteor(meteor_wordnet="off")):
        with pytest.raises(ValueError, match="no predictions"):
            metric.compute(predictions=[], references=[])
        with pytest.raises(ValueError, match="empty list"):
            metric.compute(predictions=["a", "b"], references=[["a"], []])
    for predictions, references in (([3], [0]), ([4], [1]), ([-1], [4])):
        with pytest.raises(ValueError, match="1 to 4"):
            Acts().compute(predictions=predictions, references=references)


def test_nothing_is_fetched(monkeypatch):
    def refuse(*_args, **_options):
        raise AssertionError("a metric opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    Rouge().compute(predictions=["a"], references=["a b"])
    SacreBleu().compute(predictions=["a"], references=["a b"])


@pytest.mark.thorough
def test_the_libraries_are_imported_only_when_used():
    code = (
        "import sys, rlhf_dialog.evaluation.measure, rlhf_dialog.runs.agent; "
        "print(sorted({'evaluate', 'rouge_score', 'sacrebleu'} & set(sys.modules)))"
    )
    assert output_of("-c", code).strip() == "[]"
