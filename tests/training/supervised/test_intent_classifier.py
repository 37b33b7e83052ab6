import pytest

from rlhf_dialog.training.supervised import intent_classifier as intent


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
    assert result["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 0.4 + 0) / 4)
    assert result["confusion_matrix"] == matrix


def test_the_markdown_shows_the_table_and_the_majority():
    text = intent.markdown("validation", intent.scores([[6, 2, 0, 0], [1, 3, 0, 0], [3, 0, 1, 0], [0, 0, 0, 0]]))
    assert "accuracy **0.625**, macro-F1 **0.433**; always `inform`: accuracy 0.500" in text
    assert "| directive | 1.000 | 0.250 | 0.400 | 4 |" in text
    assert "| question | 1 | 3 | 0 | 0 |" in text
