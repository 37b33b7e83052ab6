"""The card of a reward model."""

import pytest
from huggingface_hub import ModelCard

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.preferences import PreferencePair
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.preferences import measure_pairs
from rlhf_dialog.publishing.reward_card import reward_card

REPORT = {
    "validation": {
        "num_pairs": 12,
        "accuracy": 0.75,
        "macro_f1": 0.5,
        "majority": {"class": "inform", "accuracy": 0.5},
        "per_class": {"inform": {"f1": 1.0}},
        "confusion_matrix": [[1]],
    },
    "settings": {
        "data_path": "/home/ada/daily_dialog",
        "output": "/home/ada/out",
        "model_path": None,
        "seed": 3,
        "turn_separator": "<|e|>\n",
    },
    "versions": {"torch": "2.9"},
}
MODEL = {"id2label": {"0": "inform", "1": "question"}}


def test_its_header_table_and_limits(tmp_path):
    (tmp_path / "README.md").write_text(reward_card("ada/judge", REPORT, MODEL, "--agent"), encoding="utf-8")
    card = ModelCard.load(tmp_path / "README.md")
    assert (card.data.pipeline_tag, card.data.license) == ("text-classification", "cc-by-nc-sa-4.0")
    found = {one.metric_type: (one.metric_value, one.dataset_split) for one in card.data.eval_results}
    assert found == {"accuracy": (0.75, "validation"), "macro_f1": (0.5, "validation")}
    assert "| validation | `num_pairs` | 12 |" in card.text
    assert "Always `inform`: accuracy 0.500 (validation)." in card.text
    assert "One class: 0 `inform`, 1 `question`." in card.text
    assert "| `seed` | `3` |" in card.text
    assert r"| `turn_separator` | `<\|e\|>\n` |" in card.text
    assert "/home" not in card.content


def test_the_card_of_a_preference_model_has_its_report_with_its_warnings(tmp_path):
    pairs = [PreferencePair(Dialogue([f"p{i}"], "one two"), Dialogue([f"p{i}"], "one"), None, "x") for i in range(4)]
    report = measure_pairs(pairs, lambda some: [float(len(d.response)) for d in some])
    report |= {"normalisation": {"mean": 1.5, "std": 0.25, "of": "4 replies sampled from /home/ada/sft"}}
    report |= {"settings": {"data_path": "/home/ada/pairs.jsonl"}, "versions": {}}
    (tmp_path / "README.md").write_text(reward_card("ada/judge", report, {}, "--agent"), encoding="utf-8")
    card = ModelCard.load(tmp_path / "README.md")
    assert {one.metric_type: one.metric_value for one in card.data.eval_results} == {"accuracy": 1.0}
    assert "| **this model** | 100.0% |" in card.text
    assert "- **The longer reply wins 100% of the pairs" in card.text
    assert "mean 1.5000, deviation 0.2500, of 4 replies sampled from sft." in card.text
    assert "/home" not in card.content
    assert card.text.count("\n# ") + card.text.startswith("# ") == 1


def test_without_a_report_it_says_so():
    text = reward_card("ada/judge", {}, {"id2label": {"0": "LABEL_0"}}, "--agent")
    assert "Not measured." in text
    assert "trained by rlhf-dialog" not in text
    assert "One number: higher is better." in text


@pytest.mark.parametrize(
    "report", [{"settings": 3}, {"validation": {"majority": 3}}, {"versions": [1]}, {"normalisation": 3}]
)
def test_a_damaged_report_is_one_message(report):
    with pytest.raises(UserError, match=r"--agent: its report\.json is damaged"):
        reward_card("ada/judge", report, MODEL, "--agent")
