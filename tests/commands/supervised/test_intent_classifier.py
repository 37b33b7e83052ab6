import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlhf_dialog.commands.supervised import intent_classifier as train_intent_classifier
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.intent import Intent, NextAct
from rlhf_dialog.training.supervised.settings import IntentConfig
from tests.parts import tiny

pytestmark = pytest.mark.slow

SMALL = ["--num_layers", "1", "--hidden_size", "32", "--vocab_size", "300", "--max_length", "48", "--device", "cpu"]
THREADS = ["--pytorch_threads", "1"]


def run(*argv: str) -> int:
    return train_intent_classifier.main([*argv, *THREADS])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(tiny.write_data(tmp_path_factory.mktemp("data"), 60))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("intent") / "out"
    argv = ["--data_path", data, "--output", str(output), "--max_steps", "150", "--learning_rate", "5e-3"]
    assert run(*argv, "--evaluate_test", "true", *SMALL) == 0
    return output


def test_the_folder_says_what_it_is_and_loads(trained):
    model = AutoModelForSequenceClassification.from_pretrained(trained)
    assert model.config.rlhf_dialog_input == "pair"
    assert model.config.id2label == {0: "inform", 1: "question", 2: "directive", 3: "commissive"}
    assert model.config.label2id == {"inform": 0, "question": 1, "directive": 2, "commissive": 3}
    names = "config.json model.safetensors report.json report.md tokenizer.json tokenizer_config.json"
    assert sorted(path.name for path in trained.iterdir()) == names.split()


def test_the_new_tokenizer_joins_a_pair_with_token_types(trained):
    tokenizer = AutoTokenizer.from_pretrained(trained)
    encoded = tokenizer("Thanks !", "NOT really .")
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    assert "".join(token.removeprefix("##") for token in tokens) == "[CLS]thanks![SEP]notreally.[SEP]"
    border = tokens.index("[SEP]") + 1
    assert encoded["token_type_ids"] == [0] * border + [1] * (len(tokens) - border)
    assert tokenizer.model_max_length == 48


def test_it_learns_the_rule_of_the_data_and_the_report_agrees_with_the_reward(trained, data):
    """tiny's templates decide the act, so a few seconds of training must see much of it."""
    report = json.loads((trained / "report.json").read_text(encoding="utf-8"))
    pairs = [
        Dialogue([turns[i - 1]], response=turns[i], act=acts[i])
        for turns, acts in tiny.dialogues(60, start=60)
        for i in range(1, len(turns))
    ]
    rewards = Intent(str(trained), precision="fp32")(pairs)  # as the report measures
    assert report["validation"]["num_pairs"] == len(pairs) == 204
    assert report["validation"]["accuracy"] == pytest.approx(sum(rewards) / len(rewards))
    assert report["validation"]["accuracy"] > report["validation"]["majority"]["accuracy"] + 0.1
    assert report["test"]["num_pairs"] == 204
    assert report["num_train_pairs"] == 204


def test_the_classifier_is_trained_on_last_turn_and_reply_as_the_reward_reads_them(trained):
    """A pair too long loses the left of the last turn; the reply stays whole."""
    config = IntentConfig(data_path="unused", output="unused")
    last_turn = " ".join(f"word{i}" for i in range(40))
    (encoded,) = Intent(str(trained)).encode([Dialogue([last_turn], response="Thanks !")])
    tokenizer = AutoTokenizer.from_pretrained(trained)
    tail = tokenizer("Thanks !", add_special_tokens=False)["input_ids"]
    assert len(encoded["input_ids"]) == 48
    assert encoded["input_ids"][-len(tail) - 1 : -1] == tail
    assert config.max_length == 128


def test_the_report_measures_at_most_max_report_pairs_drawn_by_the_seed(data, tmp_path):
    reports = {}
    for limit, seed in ((50, 0), (50, 1), (203, 0), (204, 0)):
        output = tmp_path / f"{limit}_{seed}"
        argv = ["--data_path", data, "--output", str(output), "--max_steps", "1", "--max_report_pairs", str(limit)]
        assert run(*argv, "--seed", str(seed), *SMALL) == 0
        reports[limit, seed] = json.loads((output / "report.json").read_text(encoding="utf-8"))["validation"]
    assert {key: (one["num_pairs"], one["num_held_out"]) for key, one in reports.items()} == {
        (limit, seed): (limit, 204) for limit, seed in reports
    }
    supports = [[one["support"] for one in reports[50, seed]["per_class"].values()] for seed in (0, 1)]
    assert supports[0] != supports[1]


def test_starts_from_an_encoder_with_another_head(data, trained, tmp_path):
    """The body is taken over; a head for another number of classes is replaced."""
    model = AutoModelForSequenceClassification.from_pretrained(trained, num_labels=3, ignore_mismatched_sizes=True)
    model.save_pretrained(tmp_path / "start")
    AutoTokenizer.from_pretrained(trained).save_pretrained(tmp_path / "start")
    argv = ["--data_path", data, "--model_path", str(tmp_path / "start"), "--output", str(tmp_path / "out")]
    assert run(*argv, "--max_steps", "1", "--max_length", "32", "--device", "cpu") == 0
    body = "bert.embeddings.word_embeddings.weight"
    result = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert result.config.num_labels == 4
    assert torch.allclose(result.state_dict()[body], model.state_dict()[body], atol=0.01)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 32


def test_the_next_act_is_learned_from_the_prompt_alone(data, tmp_path):
    argv = ["--data_path", data, "--output", str(tmp_path / "out"), "--target", "next_act", "--max_steps", "2"]
    assert run(*argv, *SMALL) == 0
    assert json.loads((tmp_path / "out/config.json").read_text())["rlhf_dialog_target"] == "next_act"
    classifier = NextAct(str(tmp_path / "out"))
    prompt = ["x", "Hello .", "Thanks !"]
    (encoded,) = classifier.encode([Dialogue(prompt, response="a reply that is not read")])
    assert encoded == Intent.encode(classifier, [Dialogue(["Hello ."], response="Thanks !")])[0]
    pairs = [
        Dialogue(turns[max(0, i - 2) : i], act=acts[i])
        for turns, acts in tiny.dialogues(60, start=60)
        for i in range(1, len(turns))
    ]
    found = NextAct(str(tmp_path / "out"), precision="fp32").predict(pairs)
    hits = sum(act == pair.act - 1 for act, pair in zip(found, pairs, strict=True))
    report = json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8"))
    assert report["validation"]["accuracy"] == pytest.approx(hits / len(pairs))


def test_data_without_acts_is_an_error(tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    for split in tiny.SPLITS:
        rows = [json.dumps({"dialog": turns}) for turns, _ in tiny.dialogues(5)]
        (data / f"{split}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert run("--data_path", str(data), "--output", str(tmp_path / "out"), *SMALL) == 2
    assert "17 of 17 turns in the train split" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
