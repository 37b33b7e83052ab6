"""The model card: what its header and its text say of a run, and what they do not."""

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
from rlhf_dialog.publishing.card import CardRun, agent_card, describe_data, reward_card
from rlhf_dialog.publishing.files import make_package, write
from tests.parts.agents import save

SETTINGS = {"format_version": 1, "turn_separator": "<EOU>", "max_new_tokens": 9}
PARTS = [
    {"id": "Meteor", "args": {"meteor_wordnet": "off"}},
    {"id": "RemoteReward", "weight": 0.25, "args": {"url": "https://u:pw@host.example/s", "token_env": "MY_VARIABLE"}},
    {"id": "MyOwn", "args": {"words": "/home/ada/words.txt"}},
]
CONFIG = {
    "model_path": "/home/ada/models/start",
    "experiment_name": "first",
    "lr": 3e-5,
    "gamma": 0.99,
    "run_dir": "/home/ada/runs",
    "wandb_entity": "secret-team",
    "env": {"args": {"data_path": "/home/ada/daily_dialog", "tokenizer_path": None}},
    "reward_class": {"id": "CompositeReward", "args": {"parts": PARTS}},
}


def numbers(mean, low=None, high=None) -> dict:
    return {"mean": mean, "low": low, "high": high}


def evaluation() -> dict:
    """`after` has score 0.30; one baseline is better, one is not, and people are."""
    return {
        "before": {"score": numbers(0.2, 0.1, 0.3), "meteor": numbers(None)},
        "after": {"score": numbers(0.3, 0.25, 0.35), "meteor": numbers(None)},
        "difference": {"score": numbers(0.1, -0.01, 0.21), "meteor": numbers(None)},
        "baselines": {
            name: {"score": numbers(mean, mean, mean), "meteor": numbers(None)}
            for name, mean in (("long_constant_reply", 0.31), ("repeat_last_turn", 0.1), ("true_replies", 0.9))
        },
        "settings": {
            "split": "test",
            "num_prompts": 50,
            "baseline": "/home/ada/models/start",
            "data_path": "/home/ada/daily_dialog",
            "notes": ["The judge /home/ada/judge is new."],
        },
    }


def card_of(run: CardRun, tmp_path) -> ModelCard:
    (tmp_path / "README.md").write_text(agent_card("ada/polite", SETTINGS, run), encoding="utf-8")
    return ModelCard.load(tmp_path / "README.md")


def blocks(text: str) -> list:
    return [yaml.safe_load(block) for block in re.findall("```yaml\n(.*?)\n```", text, re.DOTALL)]


def test_the_header_is_read_back_by_the_hubs_own_classes(tmp_path):
    data = card_of(CardRun(CONFIG, evaluation()), tmp_path).data
    assert (data.license, data.language, data.datasets) == ("cc-by-nc-sa-4.0", "en", ["li2017dailydialog/daily_dialog"])
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    assert (data.rlhf_dialog_run, "base_model" in data.to_dict()) == ("first", False)
    hub = card_of(CardRun({**CONFIG, "model_path": "openai-community/gpt2"}), tmp_path).data
    assert hub.base_model == "openai-community/gpt2"


def test_the_evaluation_and_the_limits(tmp_path):
    text = card_of(CardRun(CONFIG, evaluation()), tmp_path).text
    assert "| after | 0.300 [0.250, 0.350] | - |" in text
    assert "| long_constant_reply | 0.310 [0.310, 0.310] | - |" in text
    assert {"split": "test", "num_prompts": 50, "baseline": "start"} in blocks(text)
    for hidden in ("/home", "host.example", "pw", "secret-team", "run_dir"):
        assert hidden not in (tmp_path / "README.md").read_text()
    bare = card_of(CardRun(), tmp_path)  # without a run
    assert bare.data.license == "other"
    assert "rlhf-dialog evaluate --agent ada/polite" in bare.text


def test_the_settings_the_metrics_and_the_versions(tmp_path):
    run = CardRun(CONFIG, metrics={"iteration": 3, "reward/x": 0.123456, "lr": 1}, versions={"torch": "2.9"})
    settings, metrics, changed, versions = blocks(card_of(run, tmp_path).text)
    assert settings == SETTINGS
    assert metrics == {"iteration": 3, "reward/x": 0.1235}
    parts = changed.pop("reward_class")["args"]["parts"]
    assert [(part["id"], part["args"]) for part in parts] == [
        ("Meteor", {"meteor_wordnet": "off"}),
        ("RemoteReward", {"url": "(a URL)", "token_env": "MY_VARIABLE"}),
        ("MyOwn", {"words": "words.txt"}),
    ]
    env = {"args": {"data_path": "daily_dialog", "tokenizer_path": None}}
    assert changed == {"model_path": "start", "experiment_name": "first", "lr": 3e-5, "env": env}  # gamma: the default
    assert versions == {"torch": "2.9"}


def test_text_of_others_makes_no_headings_or_fences():
    text = "x`\n# HEADING\n```\n| cell |"
    reward = {"id": "CompositeReward", "args": {"parts": [{"id": text, "args": {"prompt": text}}]}}
    run = CardRun({**CONFIG, "model_path": text, "turn_separator": text, "reward_class": reward}, evaluation())
    run.evaluation["settings"] |= {"split": text, "baseline": text, "notes": [text]}
    body = agent_card("ada/polite", {"turn_separator": text}, run).split("\n---\n", 1)[1]
    outside = re.sub("^(`{3,})yaml\n.*?\n\\1$", "", body, flags=re.DOTALL | re.MULTILINE)
    assert [line for line in outside.splitlines() if line.startswith("# ")] == ["# polite"]
    assert "HEADING" in outside, "a note, in its line"
    assert body.count("````yaml\n") == 3


def test_a_network_of_the_users_is_not_called_a_plain_model():
    settings = {**SETTINGS, "model_class": {"id": "GruPolicy", "args": {"vocab_size": 9}}}
    text = agent_card("ada/polite", settings, CardRun())
    assert "AutoModelForCausalLM" not in text
    assert "`--register FILE --trust_config`" in text
    assert "AutoModelForCausalLM" in agent_card("ada/polite", SETTINGS, CardRun())


def test_names_that_were_places_when_the_run_began_are_none_of_the_hub(tmp_path):
    """Whatever they look like from the folder of the push; those of the evaluation too."""
    config = {**CONFIG, "model_path": "runs/start", "env": {"args": {"data_path": "sets/talks"}}}
    names, measured = frozenset(["runs/start", "sets/talks", "runs/judge"]), evaluation()
    measured["settings"] |= {"baseline": "runs/start", "notes": ["The judge runs/judge is new."]}
    card = card_of(CardRun(config, measured, local_names=names), tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert not {"base_model", "datasets"} & set(card.data.to_dict())
    assert "\nmodel_path: start\n" in text
    assert "The judge judge is new." in text
    for shown in ("runs/", "sets/", "Hugging Face Hub"):
        assert shown not in text


@pytest.mark.parametrize("change", [{"settings": 1}, {"after": {"score": 1}}])
def test_a_damaged_evaluation_is_one_message(change, tmp_path):
    agent = save(tmp_path / "agent", {"max_new_tokens": 5})
    with pytest.raises(UserError, match=r"--agent: config\.yaml or evaluation\.json of the run is damaged"):
        make_package(agent, "ada/polite", CardRun(CONFIG, {**evaluation(), **change}), "--agent")


@pytest.mark.parametrize(
    ("path", "datasets"),
    [
        *(
            (path, None)
            for path in ("daily_dialog", "OpenRL/daily_dialog", "/data/DailyDialog/", "./ijcnlp_dailydialog.zip")
        ),
        ("someone/talks", ["someone/talks"]),
        ("/home/ada/my talks", []),
        (None, []),
    ],
)
def test_the_licence_of_the_data(path, datasets):
    """That of DailyDialog is what its authors and the Hub say; others ask for theirs."""
    header, text = describe_data(path)
    wanted = ("other", datasets) if datasets is not None else ("cc-by-nc-sa-4.0", ["li2017dailydialog/daily_dialog"])
    assert (header["license"], header.get("datasets", [])) == wanted
    assert ("Please fill in" in text) == (datasets is not None)
    assert "/home" not in text


# reward models


def test_a_reward_model_loads_from_what_is_published(classifier, tmp_path):
    files = make_package(Path(classifier), "ada/judge", CardRun(), "--agent")
    write(files, tmp_path)
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path).config.num_labels == 4
    assert "Not measured." in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    "secret", ["hf_" + "Zz09" * 9, "it's: a secret of many words, " * 9 + "so that YAML would fold it", 'a"b\\c\td' * 4]
)
def test_a_secret_in_the_settings_of_the_run_is_refused(secret, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    run = CardRun({"reward_class": {"id": "Mine", "args": {"word": secret}}})
    with pytest.raises(UserError, match=r"--agent: README\.md holds") as caught:
        make_package(save(tmp_path / "agent", {"max_new_tokens": 5}), "ada/judge", run, "--agent")
    assert secret not in str(caught.value)


MEASURED = {"accuracy": 0.75, "majority": {"class": "inform", "accuracy": 0.5}, "confusion_matrix": [[1]]}
TRAINED = {"data_path": "/home/ada/daily_dialog", "output": "/home/ada/out", "model_path": None, "seed": 3}
REPORT = {"validation": MEASURED, "settings": TRAINED | {"turn_separator": "<|e|>\n"}, "versions": {"torch": "2.9"}}
MODEL = {"id2label": {"0": "inform", "1": "question"}}


def test_its_header_table_and_limits(tmp_path):
    (tmp_path / "README.md").write_text(reward_card("ada/judge", REPORT, MODEL), encoding="utf-8")
    card = ModelCard.load(tmp_path / "README.md")
    assert (card.data.pipeline_tag, card.data.license) == ("text-classification", "cc-by-nc-sa-4.0")
    labels, numbers, settings, versions = blocks(card.text)
    assert labels == {"0": "inform", "1": "question"}
    assert numbers == {"validation": {name: MEASURED[name] for name in ("accuracy", "majority")}}
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
