"""All that a push uploads, of an agent and of a reward model."""

from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from transformers import AutoModelForSequenceClassification

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.preferences import PreferencePair
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.preferences import measure_pairs
from rlhf_dialog.publishing.card import CardRun
from rlhf_dialog.publishing.files import write
from rlhf_dialog.publishing.package import make_package, read_run, reward_card
from tests.parts.agents import save

TOKEN = "hf_" + "Zz09" * 9


def test_a_reward_model_loads_from_what_is_published(classifier, tmp_path):
    files = make_package(Path(classifier), "ada/judge", CardRun(), "--agent")
    write(files, tmp_path)
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path).config.num_labels == 4
    assert "A reward model for dialogues" in (tmp_path / "README.md").read_text()


def test_a_token_in_the_settings_of_the_run_is_refused(tmp_path):
    folder = save(tmp_path / "agent", {"max_new_tokens": 5})
    (tmp_path / "config.yaml").write_text(f"reward_class: {{id: Mine, args: {{word: {TOKEN}}}}}\n")
    run = read_run(tmp_path, None, {}, {})
    with pytest.raises(UserError, match=r"--agent: README\.md holds an access token") as caught:
        make_package(folder, "ada/polite", run, "--agent")
    assert TOKEN not in str(caught.value)


def test_what_a_run_folder_says(tmp_path):
    (tmp_path / "config.yaml").write_text("experiment_name: first\nenv: {args: {data_path: d}}\n")
    assert not read_run(tmp_path, None, {}, {}).local_names
    (tmp_path / "local_names.json").write_text('["d"]')
    (tmp_path / "e.json").write_text('{"settings": {}, "baselines": {}, "metrics": {}, "local_names": ["a/b", 3]}')
    run = read_run(tmp_path, tmp_path / "e.json", {"iteration": 2}, {"torch": "2"})
    assert run.local_names == {"d", "a/b"}
    assert (run.name, run.data_path, run.metrics, run.versions) == ("first", "d", {"iteration": 2}, {"torch": "2"})
    assert read_run(tmp_path / "nowhere", None, {}, {}) == CardRun()


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


def test_the_data_of_a_reward_model_was_a_folder_where_it_was_trained():
    report = {**REPORT, "settings": {"data_path": "sets/talks", "model_path": "runs/start"}}
    assert "`sets/talks` of the Hugging Face Hub" in reward_card("ada/judge", report, MODEL, "--agent")
    card = reward_card("ada/judge", report | {"local_names": ["sets/talks", "runs/start"]}, MODEL, "--agent")
    assert "`talks`. **Please fill in**" in card
    assert "| `model_path` | `start` |" in card
    assert "Hugging Face Hub" not in card


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
