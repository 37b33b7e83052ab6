from itertools import product

import pytest

from rlhf_dialog.metrics.modules import Acts
from rlhf_dialog.training.supervised import intent_classifier as intent
from tests.parts.slow_metrics import slow_macro_f1


def test_scores_by_hand():
    matrix = [[6, 2, 0, 0], [1, 3, 0, 0], [3, 0, 1, 0], [0, 0, 0, 0]]
    result = intent.scores(matrix)
    assert result["num_pairs"] == 16
    assert result["accuracy"] == pytest.approx(10 / 16)
    assert result["majority"] == {"class": "inform", "accuracy": 8 / 16}
    inform, question, directive, commissive = result["per_class"].values()
    assert inform == {"precision": 0.6, "recall": 0.75, "f1": pytest.approx(2 / 3), "support": 8}
    assert question == {"precision": 0.6, "recall": 0.75, "f1": pytest.approx(2 / 3), "support": 4}
    assert directive == {"precision": 1.0, "recall": 0.25, "f1": pytest.approx(0.4), "support": 4}
    assert commissive == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    assert result["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 0.4) / 3)  # nothing is commissive or taken for it
    assert result["confusion_matrix"] == matrix


def test_the_markdown_shows_the_table_and_the_majority():
    text = intent.markdown("validation", intent.scores([[6, 2, 0, 0], [1, 3, 0, 0], [3, 0, 1, 0], [0, 0, 0, 0]]))
    assert "accuracy **0.625**, macro-F1 **0.578**; always `inform`: accuracy 0.500" in text
    assert "| directive | 1.000 | 0.250 | 0.400 | 4 |" in text
    assert "| question | 1 | 3 | 0 | 0 |" in text


@pytest.mark.parametrize("empty", [(), (3,), (1, 3)])
def test_the_macro_f1_of_the_report_is_that_of_an_evaluation(empty):
    """Acts that nobody wants and nobody finds do not count in either."""
    matrix = [[0 if {i, j} & set(empty) else 1 + (3 * i + 5 * j) % 7 for j in range(4)] for i in range(4)]
    cells = [(i, j) for i, j in product(range(4), range(4)) for _ in range(matrix[i][j])]
    classes, acts = [j for _, j in cells], [i + 1 for i, _ in cells]
    report = intent.scores(matrix)["macro_f1"]
    assert report == pytest.approx(slow_macro_f1(classes, acts))
    assert report == Acts().compute(predictions=classes, references=acts)["intent_macro_f1"]
