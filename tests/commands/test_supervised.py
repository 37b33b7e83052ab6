"""The supervised stages from their command lines: folder, report and closing lines, and what each of them learns."""

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from experiments.everyday_dialogues.dialogues import write_dialogues
from rlhf_dialog.commands.supervised import (
    make_command,
    train_intent_classifier,
    train_relevance_model,
    train_sft,
)
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.sources import load_records
from rlhf_dialog.data.split_halves import divide
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.intent import Intent, NextAct
from rlhf_dialog.rewards.relevance import RelevanceReward
from rlhf_dialog.training.supervised.settings import SupervisedKeys
from tests.parts import tiny
from tests.parts.evaluations import save_plain


class Keys(SupervisedKeys):
    """Keys"""

    data_path: str
    output: str


class Stage:
    report_file = "report.json"

    def __init__(self, config, folder, report):
        self.config, self.folder, self.report = config, folder, report

    def train(self):
        if self.config.seed == 9:
            raise UserError("seed: 9 is not wanted")
        (self.folder / "model").write_text("weights")
        self.report("trained")
        return {"accuracy": 0.5}

    def page(self, report):
        return f"accuracy {report['accuracy']}\n"


class WithConfig(Stage):
    """Its report has the configuration; it has no page."""

    def train(self):
        return {"config": self.config.model_dump(), "accuracy": 0.5}

    def page(self, report):
        return ""


def test_the_folder_its_report_and_the_closing_lines(tmp_path, capsys):
    command, words = make_command(Keys, f"{__name__}:Stage", "Help."), ["--data_path", __file__, "--output"]
    assert command([*words, str(tmp_path / "out"), "--seed", "3"]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model", "report.json", "report.md"]
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert list(report) == ["accuracy", "seconds", "settings", "local_names", "versions", "fingerprint"]
    assert (report["settings"]["seed"], report["versions"]["torch"]) == (3, torch.__version__)
    assert capsys.readouterr().out.startswith(f"trained\n\naccuracy 0.5\n\nwrote {tmp_path / 'out'} in ")
    assert command([*words, str(tmp_path / "other"), "--seed", "9"]) == 2
    assert "seed: 9 is not wanted" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    for resume, code, word in (("auto", 0, "already"), ("never", 2, "not empty")):  # with the output of before
        assert command([*words, str(tmp_path / "out"), "--seed", "3", "--resume", resume]) == code
        assert word in "".join(capsys.readouterr())
    assert make_command(Keys, f"{__name__}:WithConfig", "Help.")([*words, str(tmp_path / "plain")]) == 0
    assert [path.name for path in (tmp_path / "plain").iterdir()] == ["report.json"]
    assert list(read(tmp_path / "plain")) == ["config", "accuracy", "seconds", "versions", "fingerprint"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "plain"]


SMALL = {
    train_sft: "--n_layer 1 --n_embd 32 --n_head 2 --vocab_size 300 --evals 1",
    train_intent_classifier: "--num_layers 1 --hidden_size 32 --vocab_size 300 --max_length 48",
    train_relevance_model: "--hidden_size 32 --vocab_size 500",
}


def run(command, data, output, *words) -> int:
    given = ["--data_path", data, "--output", output, *SMALL[command].split(), *words]
    return command([*map(str, given), "--device", "cpu", "--pytorch_threads", "1"])


def read(folder, name="report.json"):
    return json.loads((folder / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"), 60)


@pytest.mark.slow
def test_sft(data, tmp_path):
    out = tmp_path / "out"
    assert run(train_sft, data, out, "--max_steps", 8, "--learning_rate", "1e-2") == 0
    names = "config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json training.json"
    assert sorted(path.name for path in out.iterdir()) == names.split()
    lm, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert (lm.get_input_embeddings().num_embeddings, len(tokenizer), lm.config.n_layer) == (300, 300, 1)
    assert (lm.config.eos_token_id, lm.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    report = read(out, "training.json")
    before, after = report["validation"]
    assert (before["step"], after["step"]) == (0, 8)
    assert before["loss"] == pytest.approx(math.log(300), abs=0.3)  # a random model knows nothing
    assert after["loss"] < before["loss"] - 0.5
    assert after["perplexity"] == pytest.approx(math.exp(after["loss"]))
    assert report["num_train_prompts"] == 12 * (3 + 1 + 6 + 2 + 5)  # tiny's five templates, one prompt per later turn
    assert {"config", "versions"} <= set(report)
    assert "settings" not in report


@pytest.mark.slow
def test_sft_from_a_model_keeps_its_tokenizer_and_needs_no_validation(tmp_path, capsys):
    rows = [json.dumps({"dialog": turns, "act": acts}) for turns, acts in tiny.dialogues(10)]
    (tmp_path / "only_train.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    words = ["--model_path", save_plain(tmp_path / "start"), "--max_steps", 3, "--learning_rate", "1e-3"]
    assert run(train_sft, tmp_path / "only_train.jsonl", tmp_path / "out", *words) == 0
    assert "no perplexity" in capsys.readouterr().err
    assert read(tmp_path / "out", "training.json")["validation"] == []
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out")) == len(tiny.byte_tokenizer())
    changed = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()["lm_head.weight"]
    assert 0 < (changed - tiny.gpt2().state_dict()["lm_head.weight"]).abs().max() < 0.01


@pytest.fixture(scope="module")
def classifier(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("intent") / "out"
    words = ["--max_steps", 150, "--learning_rate", "5e-3", "--evaluate_test", "true"]
    assert run(train_intent_classifier, data, out, *words) == 0
    return out


def held_out(prompt_turns):
    """tiny's validation pairs, with the last turns before each reply."""
    return [
        Dialogue(turns[max(0, i - prompt_turns) : i], response=turns[i], act=acts[i])
        for turns, acts in tiny.dialogues(60, start=60)
        for i in range(1, len(turns))
    ]


@pytest.mark.slow
def test_a_classifier_learns_the_rule_of_the_data_and_its_report_agrees_with_the_reward(classifier):
    """tiny's templates decide the act, so a few seconds of training must see much of it."""
    names = "config.json model.safetensors report.json report.md tokenizer.json tokenizer_config.json"
    assert sorted(path.name for path in classifier.iterdir()) == names.split()
    model = AutoModelForSequenceClassification.from_pretrained(classifier)
    assert model.config.rlhf_dialog_input == "pair"
    assert model.config.id2label == {0: "inform", 1: "question", 2: "directive", 3: "commissive"}
    report, pairs = read(classifier), held_out(1)
    rewards = Intent(str(classifier), precision="fp32")(pairs)  # as the report measures
    assert report["validation"]["num_pairs"] == report["test"]["num_pairs"] == report["num_train_pairs"] == 204
    assert report["validation"]["accuracy"] == pytest.approx(sum(rewards) / len(rewards))
    assert report["validation"]["accuracy"] > report["validation"]["majority"]["accuracy"] + 0.1
    long_turn = " ".join(f"word{i}" for i in range(40))  # it loses its left, and the reply stays whole
    (encoded,) = Intent(str(classifier)).encode([Dialogue([long_turn], response="Thanks !")])
    tail = AutoTokenizer.from_pretrained(classifier)("Thanks !", add_special_tokens=False)["input_ids"]
    assert (len(encoded["input_ids"]), encoded["input_ids"][-len(tail) - 1 : -1]) == (48, tail)


@pytest.mark.slow
def test_a_classifier_takes_over_the_body_of_an_encoder_with_another_head(data, classifier, tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(classifier, num_labels=3, ignore_mismatched_sizes=True)
    model.save_pretrained(tmp_path / "start")
    AutoTokenizer.from_pretrained(classifier).save_pretrained(tmp_path / "start")
    words = ["--model_path", tmp_path / "start", "--max_steps", 1, "--max_length", 32]
    assert run(train_intent_classifier, data, tmp_path / "out", *words) == 0
    body, result = (
        "bert.embeddings.word_embeddings.weight",
        AutoModelForSequenceClassification.from_pretrained(tmp_path / "out"),
    )
    assert result.config.num_labels == 4
    assert torch.allclose(result.state_dict()[body], model.state_dict()[body], atol=0.01)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 32


@pytest.mark.slow
def test_the_next_act_is_learned_from_the_prompt_alone(data, tmp_path):
    assert run(train_intent_classifier, data, tmp_path / "out", "--target", "next_act", "--max_steps", 2) == 0
    assert read(tmp_path / "out", "config.json")["rlhf_dialog_target"] == "next_act"
    classifier, pairs = NextAct(str(tmp_path / "out"), precision="fp32"), held_out(2)
    (encoded,) = classifier.encode([Dialogue(["x", "Hello .", "Thanks !"], response="a reply that is not read")])
    assert encoded == Intent.encode(classifier, [Dialogue(["Hello ."], response="Thanks !")])[0]
    hits = sum(act == pair.act - 1 for act, pair in zip(classifier.predict(pairs), pairs, strict=True))
    assert read(tmp_path / "out")["validation"]["accuracy"] == pytest.approx(hits / len(pairs))


@pytest.mark.slow
def test_a_relevance_model_pays_true_replies_and_no_copies_or_constants(tmp_path):
    """As a policy would write them in training: on the prompts of the training split, floored."""
    data, out = tmp_path / "made_up", tmp_path / "out"
    write_dialogues(data, 400, seed=3)
    words = "--half reward --members 2 --max_steps 180 --batch_size 64 --bank_size 100 --learning_rate 1e-2"
    assert run(train_relevance_model, data, out, *words.split()) == 0
    names = "bank.json config.json model.safetensors report.json report.md tokenizer.json tokenizer_config.json"
    assert sorted(path.name for path in out.iterdir()) == names.split()
    report = read(out)
    found, half = report["validation"], report["learned_half"]
    assert (report["num_bank"], half["part"], len(half["assignment"])) == (100, "reward", 64)
    assert found["r10"]["low"] > 0.2  # by chance 0.1
    prompts, parts = PromptRules().load(str(data), "train"), divide(load_records(str(data), "train")).parts
    kept = [prompt.prompt_turns for prompt in prompts if parts[prompt.meta["dialogue"]] == "reward"]
    assert all(turns in kept for turns in read(out, "bank.json"))
    reward, some = RelevanceReward(str(out)), [one for one in prompts[:300] if len(one.prompt_turns) > 1]

    def paid(answer):
        return sum(reward([prompt.with_reply(answer(prompt)) for prompt in some])) / len(some)

    copies = [paid(lambda prompt, back=back: prompt.prompt_turns[-back]) for back in (1, 2)]
    almost = paid(lambda prompt: " ".join(prompt.prompt_turns[-1].split()[1:]))  # without its first word
    constants = [paid(lambda _, text=text: text) for text in ("", "I see .", "Thank you . Goodbye .")]
    assert paid(lambda prompt: prompt.reference) > 0.3
    assert max(copies) < -1
    assert max(almost, *constants) < 0
