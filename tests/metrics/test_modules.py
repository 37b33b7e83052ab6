"""The metrics of replies against slow second implementations, and as `evaluate.Metric` classes."""

import socket

import evaluate
import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.metrics.meteor import meteor
from rlhf_dialog.metrics.modules import Acts, Copied, CopiedTwo, Distinct, MeteorMetric, Rouge, SacreBleu
from rlhf_dialog.metrics.text import others
from tests.parts.processes import output_of
from tests.parts.slow_metrics import corpus, slow_bleu, slow_macro_f1, slow_rouge

# ROUGE


# BLEU


# METEOR with several references, acts, copies, permutations


# as evaluate.Metric


def test_the_classes_give_the_means_of_the_slow_metrics():
    replies, references = corpus(2)
    metrics = evaluate.combine([Rouge(), SacreBleu(), Distinct(), MeteorMetric(meteor_wordnet="off", seed=3), Copied()])
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
    for metric in (Rouge(), SacreBleu(), MeteorMetric(meteor_wordnet="off")):
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
        MeteorMetric(meteor_wordnet="require")


def test_what_cannot_be_measured_is_said():
    for metric in (Rouge(), SacreBleu(), MeteorMetric(meteor_wordnet="off")):
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


@pytest.mark.ci
def test_the_libraries_are_imported_only_when_used():
    code = (
        "import sys, rlhf_dialog.evaluation.measure, rlhf_dialog.runs.agent; "
        "print(sorted({'evaluate', 'rouge_score', 'sacrebleu'} & set(sys.modules)))"
    )
    assert output_of("-c", code).strip() == "[]"


def test_copied_two_looks_at_the_last_two_turns():
    turns = [["a b c", "d e", "f g"], ["a b"]]
    found = CopiedTwo().compute(predictions=["d e f g", "a b c"], turns=turns)
    assert found == {"copied_two": pytest.approx((2 / 3 + 1 / 2) / 2)}
    assert CopiedTwo().compute(predictions=["a b c"], turns=turns[:1]) == {"copied_two": 0.0}
