"""Training from three kinds of start, what is written, what the report says, and models that TRL alone trained."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import RewardModel
from rlhf_dialog.training.supervised import preference_model
from rlhf_dialog.training.supervised.preference_model import PreferenceModel
from rlhf_dialog.training.supervised.settings import PreferenceConfig
from tests.parts import tiny
from tests.parts.scalars import pairs_about_a_word, save_scalar, write_pairs

pytestmark = pytest.mark.slow


def config_of(folder, rows, model, **keys):
    data = write_pairs(folder / "pairs.jsonl", rows)
    options = {"device": "cpu", "pytorch_threads": 1, "learning_rate": 5e-3, "num_samples": 4, "max_new_tokens": 4}
    return PreferenceConfig(data_path=data, output="unused", model_path=str(model), **(options | keys))


def save_start(folder, kind):
    """A GPT-2 or a Llama as SFT writes it, or a BERT of four labels that remembers what they were for."""
    if kind == "bert":
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        labels = {"num_labels": 4, "problem_type": "single_label_classification"}
        tokenizer = tiny.byte_tokenizer()
        tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
        torch.manual_seed(0)
        ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": 128}
        BertForSequenceClassification(BertConfig(**sizes, **labels, **ids)).save_pretrained(folder)
    else:
        tokenizer = tiny.byte_tokenizer()
        {"gpt2": tiny.gpt2, "llama": tiny.llama}[kind]().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


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
    assert (tmp_path / "trl" / "training_args.bin").exists()  # the pickle that is left beside the weights, and not read
    ids = [trainer.train_dataset[i]["chosen_ids"] for i in range(4)]
    with torch.no_grad():
        expected = [trainer.model.eval()(torch.tensor([row])).logits.item() for row in ids]
    dialogues = [Dialogue(["Hi ."], f"Hello {i} .") for i in range(4)]
    assert RewardModel(str(tmp_path / "trl"))(dialogues) == pytest.approx(expected, abs=1e-5)


def test_a_new_head_has_the_deviation_of_its_width_and_an_old_one_is_kept(tmp_path):
    big = tiny.gpt2(n_embd=1024, n_layer=1)
    big.save_pretrained(tmp_path / "big")
    tiny.byte_tokenizer().save_pretrained(tmp_path / "big")
    config = config_of(tmp_path, pairs_about_a_word(4), tmp_path / "big")
    torch.manual_seed(0)
    model, _ = preference_model.starting_point(config)
    assert model.score.weight.std().item() == pytest.approx(1 / np.sqrt(1025), rel=0.1)
    old = save_scalar(tmp_path / "old", "gpt2")
    kept, _ = preference_model.starting_point(config.model_copy(update={"model_path": old}))
    assert torch.equal(kept.score.weight, AutoModelForSequenceClassification.from_pretrained(old).score.weight)


@pytest.mark.parametrize("has_room", [True, False])
def test_a_tokenizer_without_pad_and_end_of_text_gets_a_pad_token(tmp_path, has_room):
    tokenizer = tiny.byte_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token = None
    room = 1 if has_room else 0
    tiny.gpt2(vocab_size=len(tokenizer) + room, pad_token_id=None, eos_token_id=None).save_pretrained(tmp_path / "lm")
    tokenizer.save_pretrained(tmp_path / "lm")
    model, words = preference_model.starting_point(config_of(tmp_path, [], tmp_path / "lm"))
    assert model.config.pad_token_id == words.pad_token_id is not None
    assert model.get_input_embeddings().num_embeddings >= len(words)


def test_long_pairs_are_cut_and_not_dropped_and_margins_go_along(tmp_path):
    rows = [{"prompt": "a b c " * 50, "chosen": "x", "rejected": "y", "margin": 0.5}] * 3
    config = config_of(tmp_path, rows, save_start(tmp_path / "start", "gpt2"), max_length=20)
    model, tokenizer = preference_model.starting_point(config)
    inputs = preference_model.input_of(config, model, tokenizer)
    found = [
        preference_model.encode_pair(pair, inputs) for pair in preference_model.load_pairs(config.data_path, "train")
    ]
    assert [(len(row["chosen_ids"]), row["margin"], row["length"]) for row in found] == [(20, 0.5, 20)] * 3
    assert tokenizer.decode(found[0]["chosen_ids"]).endswith("c<EOU> x<EOU>")


def test_the_stored_mean_is_that_of_sampled_replies_to_the_prompts_alone(tmp_path, monkeypatch):
    config = config_of(tmp_path, pairs_about_a_word(6), save_start(tmp_path / "start", "gpt2"), num_samples=8)
    reward = RewardModel(save_scalar(tmp_path / "reward", "gpt2"))
    seen = []
    outputs = reward.outputs
    monkeypatch.setattr(reward, "outputs", lambda dialogues: seen.extend(dialogues) or outputs(dialogues))
    pairs = preference_model.load_pairs(config.data_path, "train")
    monkeypatch.setattr(reward.scalar.input, "separator", "<EOU>")
    found = preference_model.normalisation(config, reward, pairs, lambda _: None)
    assert [d.prompt_turns for d in seen] == [pairs[i % 6].chosen.prompt_turns for i in range(8)]
    assert not any(d.earlier for d in seen)
    scores = np.asarray(outputs(seen))
    assert (found["mean"], found["std"]) == (pytest.approx(scores.mean()), pytest.approx(scores.std()))


def test_the_separator_is_that_of_an_agents_folder(tmp_path):
    start = save_start(tmp_path / "start", "gpt2")
    (start / "rlhf_dialog.json").write_text('{"turn_separator": "##"}', encoding="utf-8")
    config = config_of(tmp_path, [], start)
    inputs = preference_model.input_of(config, *preference_model.starting_point(config))
    assert inputs.tokenizer.decode(inputs.encode(Dialogue(["a"], "b"))["input_ids"]) == "a ## b ##"


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


def test_sides_that_are_the_same_tokens_name_the_row(tmp_path):
    rows = [{"prompt": "p", "chosen": "x <EOU>", "rejected": "x"}]
    config = config_of(tmp_path, rows, save_start(tmp_path / "start", "gpt2"))
    inputs = preference_model.input_of(config, *preference_model.starting_point(config))
    (pair,) = preference_model.load_pairs(config.data_path, "train")
    with pytest.raises(UserError, match=r"line 1: 'chosen' and 'rejected' are the same \d+ tokens"):
        preference_model.encode_pair(pair, inputs)


def test_a_training_that_diverges_is_one_message(tmp_path):
    config = config_of(
        tmp_path,
        pairs_about_a_word(20),
        save_start(tmp_path / "start", "gpt2"),
        learning_rate=1e38,
        max_steps=8,
        batch_size=4,
    )
    with pytest.raises(UserError, match=r"learning_rate: 1e\+38 made the weights of the model NaN"):
        PreferenceModel(config, tmp_path / "out", lambda _: None).train()
