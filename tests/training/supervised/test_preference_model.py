"""Training from three kinds of start, what is written, what the report says, and models that TRL alone trained."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

from rlhf_dialog.config.loading import load_settings
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.preferences import PreferencePair, load_pairs
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import RewardModel
from rlhf_dialog.training.supervised import preference_model
from rlhf_dialog.training.supervised.new_tokenizers import new_pair_tokenizer
from rlhf_dialog.training.supervised.preference_model import PreferenceModel
from rlhf_dialog.training.supervised.settings import PreferenceConfig
from tests.parts import tiny
from tests.parts.scalars import pairs_about_a_word, save_scalar, write_pairs


def config_of(folder, rows, model, **keys):
    data = write_pairs(folder / "pairs.jsonl", rows)
    options = {"device": "cpu", "pytorch_threads": 1, "learning_rate": 5e-3, "num_samples": 4, "max_new_tokens": 4}
    return PreferenceConfig(data_path=data, output="unused", model_path=str(model), **(options | keys))


def save_start(folder, kind="gpt2"):
    """A GPT-2 or a Llama as SFT writes it, or a BERT of four labels that remembers what they were for."""
    tokenizer = tiny.byte_tokenizer()
    if kind == "bert":
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        labels = {"num_labels": 4, "problem_type": "single_label_classification"}
        tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
        torch.manual_seed(0)
        ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": 128}
        BertForSequenceClassification(BertConfig(**sizes, **labels, **ids)).save_pretrained(folder)
    else:
        {"gpt2": tiny.gpt2, "llama": tiny.llama}[kind]().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# what needs no training


def test_pairs_with_the_special_tokens_of_the_reward_models_template_are_left_out(tmp_path):
    start = save_start(tmp_path / "start")
    tokenizer = tiny.byte_tokenizer()
    tokenizer.chat_template = tiny.CHATML.replace("<|im_start|>", "<pad>")
    tokenizer.save_pretrained(start)
    rows = [{"chosen": "Two streets .", "rejected": "No ."} | {"prompt": f"Is {n} far ?"} for n in range(40)]
    rows[3] |= {"rejected": "No . <pad>"}
    rows[5] |= {"prompt": "<pad>user\nWhy ?"}
    config = config_of(tmp_path, rows, start)
    every, stage = load_pairs(config.data_path, "train"), PreferenceModel(config, tmp_path, print)
    stage.training, stage.held_out = every[:30], every[20:]
    stage.start()
    assert (len(stage.training), len(stage.held_out)) == (28, 20)
    stage.training = every[:19]
    with pytest.raises(UserError, match=r"(?s)2 of 19 rows.*line 4: .*<pad>"):
        stage.start()


@pytest.mark.parametrize(
    "preference",
    [
        {"column": "winner"},
        {"column": "winner", "chosen_is": 1, "above": 0},
        {"colum": "winner", "chosen_is": 1},
        {"column": 3, "chosen_is": 1},
        {"column": "winner", "above": "much"},
        {"column": "winner", "chosen_is": [1]},
        "winner",
    ],
)
def test_a_wrong_preference_is_one_sentence(preference):
    keys = {"data_path": "a", "output": "b", "model_path": "c", "preference": preference}
    with pytest.raises(UserError) as caught:
        load_settings(PreferenceConfig, None, keys)
    assert "1 problem\n  preference: found" in str(caught.value)
    assert all(word in str(caught.value) for word in ("chosen_is: VALUE", "above: NUMBER", "null"))


def test_both_splits_are_read_by_the_preference(tmp_path):
    rows = [{"prompt": f"{i}", "a": "x", "b": "y", "winner": i % 2} for i in range(4)]
    for split, some in (("train", rows[:2]), ("validation", rows[2:])):
        write_pairs(tmp_path / f"{split}.jsonl", some)
    keys = {"columns": {"chosen": "a", "rejected": "b"}, "preference": {"column": "winner", "chosen_is": 1}}
    config = config_of(tmp_path, [], "m", **keys)
    config.data_path = str(tmp_path)
    pairs = preference_model.read_pairs(config, print)
    assert [[pair.chosen.response for pair in some] for some in pairs] == [["y", "x"], ["y", "x"]]


def test_the_start_has_one_output_a_pad_token_and_a_new_head_of_its_width_alone(tmp_path):
    big, tokenizer = tiny.gpt2(n_embd=1024, n_layer=1), tiny.byte_tokenizer()
    tokenizer.pad_token, tokenizer.padding_side = None, "left"
    for part in (big, tokenizer):
        part.save_pretrained(tmp_path / "big")
    config = config_of(tmp_path, [], tmp_path / "big")
    torch.manual_seed(0)
    model, words = preference_model.starting_point(config)
    assert model.score.weight.std().item() == pytest.approx(1 / np.sqrt(1025), rel=0.1)
    assert (model.num_labels, model.score.bias, model.config.problem_type) == (1, None, None)
    assert (model.config.pad_token_id, words.padding_side) == (words.eos_token_id, "right")
    old = save_scalar(tmp_path / "old", "gpt2")
    kept, _ = preference_model.starting_point(config.model_copy(update={"model_path": old}))
    assert torch.equal(kept.score.weight, AutoModelForSequenceClassification.from_pretrained(old).score.weight)
    with torch.no_grad():
        kept.score.weight[0, 0] = torch.nan
    kept.save_pretrained(old)
    with pytest.raises(UserError, match=r"model_path: weights of .* are NaN or inf"):
        preference_model.starting_point(config.model_copy(update={"model_path": old}))


def test_long_pairs_are_cut_and_not_dropped_and_sides_of_the_same_tokens_name_the_row(tmp_path):
    rows = [{"prompt": "a b c " * 50, "chosen": "x", "rejected": "y", "margin": 0.5}] * 3
    config = config_of(tmp_path, rows, save_start(tmp_path / "start"), max_length=20)
    inputs = preference_model.input_of(config, *preference_model.starting_point(config))
    found = [preference_model.encode_pair(pair, inputs) for pair in load_pairs(config.data_path, "train")]
    assert [(len(row["chosen_ids"]), row["margin"], row["length"]) for row in found] == [(20, 0.5, 20)] * 3
    assert inputs.tokenizer.decode(found[0]["chosen_ids"]).endswith("c<EOU> x<EOU>")
    assert inputs.tokenizer.decode(found[0]["rejected_ids"]).endswith("c<EOU> y<EOU>")
    same = PreferencePair(Dialogue(["p"], "x <EOU>"), Dialogue(["p"], "x"), None, "line 1")
    with pytest.raises(UserError, match=r"line 1: 'chosen' and 'rejected' are the same \d+ tokens"):
        preference_model.encode_pair(same, inputs)


def test_the_separator_is_that_of_an_agents_folder_or_the_token_of_an_encoder(tmp_path):
    start = save_start(tmp_path / "start")
    (start / "rlhf_dialog.json").write_text('{"turn_separator": "##"}', encoding="utf-8")
    for folder, wanted in ((start, "a ## b ##"), (save_start(tmp_path / "plain"), "a<EOU> b<EOU>")):
        config = config_of(tmp_path, [], folder)
        model, tokenizer = preference_model.starting_point(config)
        inputs = preference_model.input_of(config, model, tokenizer)
        assert tokenizer.decode(inputs.encode(Dialogue(["a"], "b"))["input_ids"]) == wanted
    inputs = preference_model.input_of(config_of(tmp_path, [], start), model, new_pair_tokenizer(["a b"], 300, 64))
    assert inputs.separator == "[SEP]"


def test_the_validation_split_is_held_out_without_its_prompts(tmp_path):
    rows = pairs_about_a_word(10)
    write_pairs(tmp_path / "train.jsonl", rows)
    write_pairs(tmp_path / "validation.jsonl", [rows[0], {"prompt": "new", "chosen": "a", "rejected": "b"}])
    said = []
    config = PreferenceConfig(data_path=str(tmp_path), output="x", model_path="y", max_train_pairs=5)
    training, held = preference_model.read_pairs(config, said.append)
    assert (len(training), len(held)) == (5, 2)
    assert rows[0]["prompt"][0] not in {pair.prompt for pair in training}
    assert "1 pairs left out" in said[0]
    write_pairs(tmp_path / "train.jsonl", rows[:1])
    with pytest.raises(UserError, match="no training pair whose prompt is not in the validation split"):
        preference_model.read_pairs(config, said.append)
    alone = config.model_copy(update={"data_path": write_pairs(tmp_path / "alone.jsonl", rows), "held_out": 0.2})
    assert [len(some) for some in preference_model.read_pairs(alone, said.append)] == [5, 2]


@pytest.mark.parametrize("num_samples", [5, 0])
def test_the_stored_mean_is_that_of_sampled_replies_or_of_the_held_out_ones(tmp_path, monkeypatch, num_samples):
    def sampled(config, prompts, separator):
        assert separator == "##"
        return [Dialogue(prompt.prompt_turns, "12345") for prompt in prompts]

    monkeypatch.setattr(preference_model, "sample_replies", sampled)
    monkeypatch.setattr(preference_model, "is_causal", lambda path: True)
    reward = SimpleNamespace(outputs=lambda some: [len(d.response) + len(d.prompt_turns[0]) for d in some])
    reward.scalar = SimpleNamespace(input=SimpleNamespace(separator="##"))
    pairs = [PreferencePair(Dialogue([p], p), Dialogue([p], ""), None, "x") for p in ("a", "bbb")]
    config = config_of(tmp_path, [], "start", num_samples=num_samples)
    found = preference_model.normalisation(config, reward, pairs, lambda _: None)
    scores = [6, 8, 6, 8, 6] if num_samples else [2, 1, 6, 3]
    assert (found["mean"], found["std"]) == (pytest.approx(np.mean(scores)), pytest.approx(np.std(scores)))
    assert found["of"] == ("5 replies sampled from start" if num_samples else "4 held-out replies")
    reward.outputs = lambda some: [7.0] * len(some)
    assert preference_model.normalisation(config, reward, pairs, lambda _: None)["std"] == 1.0


def test_mean_and_deviation_of_the_scores_are_stored_with_the_model(tmp_path):
    folder = save_scalar(tmp_path / "out", "gpt2")
    config = config_of(tmp_path, [], folder, num_samples=0)
    stage = PreferenceModel(config, tmp_path / "out", lambda _: None)
    stage.model, stage.training = AutoModelForSequenceClassification.from_pretrained(folder), [None] * 3
    stage.num_parameters = 7
    stage.held_out = [PreferencePair(Dialogue([p], p), Dialogue([p], "no"), None, "x") for p in ("a", "bbb")]
    result = stage.measure()
    scores = RewardModel(folder, normalize=False)(
        [getattr(pair, side) for pair in stage.held_out for side in ("chosen", "rejected")]
    )
    written = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert (written["mean"], written["std"]) == (pytest.approx(np.mean(scores)), pytest.approx(np.std(scores)))
    assert (result["num_train_pairs"], result["num_parameters"], result["num_pairs"]) == (3, 7, 2)


# whole trainings


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_it_learns_from_every_start_and_the_folder_is_a_reward(tmp_path, kind):
    start = save_start(tmp_path / "start", kind)
    config = config_of(tmp_path, pairs_about_a_word(200), start, max_steps=24, batch_size=16, learning_rate=1e-2)
    out = tmp_path / "out"
    result = PreferenceModel(config, out, lambda _: None).train()
    assert result["accuracy"]["mean"] > 0.9 > result["baselines"]["longer_wins"]["mean"]
    assert (result["num_train_pairs"], result["num_pairs"]) == (180, 20)
    assert sorted(path.name for path in out.iterdir()) == [
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    ]
    written = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert (written["rlhf_dialog_input"], written["rlhf_dialog_separator"]) == ("dialogue", "<EOU>")
    assert "problem_type" not in written or written["problem_type"] is None
    assert AutoModelForSequenceClassification.from_pretrained(out).config.num_labels == 1
    normal = result["normalisation"]
    assert (written["mean"], written["std"]) == (normal["mean"], normal["std"])
    assert normal["of"].startswith("40 held-out" if kind == "bert" else "4 replies sampled from")
    good, bad = RewardModel(str(out))([Dialogue(["5 elk fox"], text) for text in ("yes gnu hen", "no gnu hen")])
    assert good > bad


@pytest.mark.slow
def test_a_model_that_trl_trained_alone_is_used_unchanged(tmp_path):
    """Its score is that of the library's model for the ids that TRL makes from messages."""
    from trl import RewardConfig, RewardTrainer

    tokenizer = tiny.chat_tokenizer(tiny.CHATML)
    save_scalar(tmp_path / "start", "llama", tokenizer=tokenizer)
    said = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    rows = [{"prompt": "Hi .", "chosen": f"Hello {i} .", "rejected": "No ."} for i in range(4)]
    rows = [{key: [{"role": said[key], "content": text}] for key, text in row.items()} for row in rows]
    quick = {"max_steps": 1, "per_device_train_batch_size": 2, "report_to": "none", "save_strategy": "no"}
    plain = {"bf16": False, "gradient_checkpointing": False, "use_cpu": True, "disable_tqdm": True}
    trainer = RewardTrainer(
        model=AutoModelForSequenceClassification.from_pretrained(tmp_path / "start"),
        args=RewardConfig(output_dir=str(tmp_path / "scratch"), **quick, **plain),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "trl"))
    ids = [trainer.train_dataset[i]["chosen_ids"] for i in range(4)]
    with torch.no_grad():
        expected = [trainer.model.eval()(torch.tensor([row])).logits.item() for row in ids]
    dialogues = [Dialogue(["Hi ."], f"Hello {i} .") for i in range(4)]
    assert RewardModel(str(tmp_path / "trl"))(dialogues) == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_a_training_that_diverges_is_one_message(tmp_path):
    keys = {"learning_rate": 1e38, "max_steps": 8, "batch_size": 4}
    config = config_of(tmp_path, pairs_about_a_word(20), save_start(tmp_path / "start"), **keys)
    with pytest.raises(UserError, match=r"learning_rate: 1e\+38 made the weights of the model NaN"):
        PreferenceModel(config, tmp_path / "out", lambda _: None).train()
