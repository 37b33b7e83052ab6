"""All that a push uploads, of an agent and of a reward model."""

import json
from pathlib import Path

import pytest
from agents import save
from transformers import AutoModelForSequenceClassification

from rlhf_dialog.errors import UserError
from rlhf_dialog.publishing.card import CardRun
from rlhf_dialog.publishing.files import write
from rlhf_dialog.publishing.package import make_package, read_run

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
    (tmp_path / "e.json").write_text(json.dumps({"settings": {}, "baselines": {}, "metrics": {}}))
    run = read_run(tmp_path, tmp_path / "e.json", {"iteration": 2}, {"torch": "2"})
    assert (run.name, run.data_path, run.metrics, run.versions) == ("first", "d", {"iteration": 2}, {"torch": "2"})
    assert read_run(tmp_path / "nowhere", None, {}, {}) == CardRun()
