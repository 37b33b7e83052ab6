"""All that a push uploads, of an agent and of a reward model."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from transformers import AutoModelForSequenceClassification

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.preferences import PreferencePair
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.preferences import measure_pairs
from rlhf_dialog.publishing.card import CardRun, reward_card
from rlhf_dialog.publishing.files import make_package, write
from tests.parts.agents import save

TOKEN = "hf_" + "Zz09" * 9


def test_a_reward_model_loads_from_what_is_published(classifier, tmp_path):
    files = make_package(Path(classifier), "ada/judge", CardRun(), "--agent")
    write(files, tmp_path)
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path).config.num_labels == 4
    assert "Not measured." in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    "secret", [TOKEN, "it's: a secret of many words, " * 9 + "so that YAML would fold it", 'a"b\\c\td' * 4]
)
def test_a_secret_in_the_settings_of_the_run_is_refused(secret, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    folder = save(tmp_path / "agent", {"max_new_tokens": 5})
    run = CardRun({"reward_class": {"id": "Mine", "args": {"word": secret}}})
    with pytest.raises(UserError, match=r"--agent: README\.md holds") as caught:
        make_package(folder, "ada/judge", run, "--agent")
    assert secret not in str(caught.value)


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
    (tmp_path / "README.md").write_text(reward_card("ada/judge", REPORT, MODEL), encoding="utf-8")
    card = ModelCard.load(tmp_path / "README.md")
    assert (card.data.pipeline_tag, card.data.license) == ("text-classification", "cc-by-nc-sa-4.0")
    blocks = [yaml.safe_load(text) for text in re.findall("```yaml\n(.*?)\n```", card.text, re.DOTALL)]
    labels, numbers, settings, versions = blocks
    assert labels == {"0": "inform", "1": "question"}
    assert numbers["validation"]["accuracy"] == 0.75
    assert numbers["validation"]["majority"] == {"class": "inform", "accuracy": 0.5}
    assert settings == {"data_path": "daily_dialog", "seed": 3, "turn_separator": "<|e|>\n"}
    assert versions == {"torch": "2.9"}
    assert "/home" not in card.content


def test_the_data_of_a_reward_model_was_a_folder_where_it_was_trained():
    report = {**REPORT, "settings": {"data_path": "sets/talks", "model_path": "runs/start"}}
    assert "`sets/talks` of the Hugging Face Hub" in reward_card("ada/judge", report, MODEL)
    card = reward_card("ada/judge", report | {"local_names": ["sets/talks", "runs/start"]}, MODEL)
    assert "**Please fill in**" in card
    assert "data_path: talks\nmodel_path: start\n" in card
    assert "Hugging Face Hub" not in card


def test_the_card_of_a_preference_model_has_its_report_with_its_warnings(tmp_path):
    pairs = [PreferencePair(Dialogue([f"p{i}"], "one two"), Dialogue([f"p{i}"], "one"), None, "x") for i in range(4)]
    report = measure_pairs(pairs, lambda some: [float(len(d.response)) for d in some])
    report |= {"normalisation": {"mean": 1.5, "std": 0.25, "of": "4 replies sampled from /home/ada/sft"}}
    report |= {"settings": {"data_path": "/home/ada/pairs.jsonl"}, "versions": {}}
    (tmp_path / "README.md").write_text(reward_card("ada/judge", report, {}), encoding="utf-8")
    card = ModelCard.load(tmp_path / "README.md")
    assert "| **this model** | 100.0% |" in card.text
    assert "- **The longer reply wins 100% of the pairs" in card.text
    assert "mean 1.5000, deviation 0.2500, of 4 replies sampled from sft." in card.text
    assert "/home" not in card.content
    assert card.text.count("\n# ") + card.text.startswith("# ") == 1


@pytest.mark.parametrize("report", [{"settings": 3}, {"validation": 3}, {"versions": 1}, {"normalisation": 3}])
def test_a_damaged_report_is_one_message(report, classifier, tmp_path):
    folder = shutil.copytree(classifier, tmp_path / "judge")
    (folder / "report.json").write_text(json.dumps(report))
    with pytest.raises(UserError, match=r"--agent: its report\.json is damaged"):
        make_package(folder, "ada/judge", CardRun(), "--agent")
