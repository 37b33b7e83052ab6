from pathlib import Path

import pytest
import torch
from trl import SFTTrainer

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptEncoder
from rlhf_dialog.training.supervised import sft
from tests.parts import tiny


def test_labels_cover_exactly_reply_and_separator_and_eos_where_it_is_learnt():
    tokenizer = tiny.byte_tokenizer()
    encoder = PromptEncoder(tokenizer, "<EOU>", 128)
    dialogue = Dialogue(["Hi .", "Yes ?"], reference="No .")
    row = sft.example(encoder, dialogue)
    tokens = tokenizer.convert_ids_to_tokens(row["input_ids"])
    assert tokens == [*"HiĠ.", "<EOU>", *"ĠYesĠ?", "<EOU>", *"ĠNoĠ.", "<EOU>"]
    assert row["labels"][:-6] == [-100] * 12
    assert row["labels"][-6:] == row["input_ids"][-6:]
    assert row["length"] == 18
    with_eos = sft.example(encoder, dialogue, learn_eos=True)
    assert with_eos["input_ids"] == [*row["input_ids"], tokenizer.eos_token_id]
    assert with_eos["labels"] == [*row["labels"], tokenizer.eos_token_id]
    cut = sft.example(encoder, dialogue, positions=15)
    assert cut == {"input_ids": row["input_ids"][:15], "labels": row["labels"][:15], "length": 15}


def test_the_configured_separator_inside_a_turn_becomes_a_space(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"dialog": ["a | b", "c <EOU> d"]}\n')
    config = sft.SFTConfig(data_path=str(tmp_path), output="x", turn_separator="|")
    (prompt,) = sft.read_prompts(config, "train", None, lambda line: None)
    assert (prompt.prompt_turns, prompt.reference) == (["a b"], "c <EOU> d")


def test_merging_prefixes_keeps_every_labelled_token_with_the_tokens_before_it():
    encoder = PromptEncoder(tiny.byte_tokenizer(), "<EOU>", 128)
    turns = ["Hi .", "Yes ?", "No .", "Why ?"]
    rows = [sft.example(encoder, Dialogue(turns[:i], reference=turns[i])) for i in (1, 2, 3)]
    rows += [sft.example(encoder, Dialogue(["Other ."], reference="Turn ."))]
    merged = sft.merge_prefixes(rows)
    assert len(merged) == 2
    assert merged[1] == rows[3]

    def facts(some_rows):
        return sorted(
            (row["input_ids"][:i], label) for row in some_rows for i, label in enumerate(row["labels"]) if label != -100
        )

    assert facts(merged) == facts(rows)
    window = [sft.example(encoder, Dialogue(turns[:2], reference=turns[2])), rows[3]]
    assert sft.merge_prefixes(window) == window


def test_merged_rows_have_the_same_loss():
    encoder, lm = PromptEncoder(tiny.byte_tokenizer(), "<EOU>", 128), tiny.gpt2()
    turns = ["Hi .", "Yes ?", "No .", "Why ?"]
    rows = [sft.example(encoder, Dialogue(turns[:i], reference=turns[i])) for i in (1, 2, 3)]
    merged = sft.merge_prefixes(rows)
    assert sft.token_loss(lm, merged, 4) == pytest.approx(sft.token_loss(lm, rows, 4), abs=1e-5)


def fine_tuned(config, tokenizer, rows, held_out):
    """The stage after tiny's GPT-2 was trained on `rows`, and measured on `held_out`."""
    stage = sft.SFT(config, Path(config.output), print)
    stage.model, stage.tokenizer, stage.watch = tiny.gpt2(), tokenizer, sft.HeldOutLoss(held_out, config)
    stage.fine_tune(rows)
    return stage


def test_the_trainer_sees_those_labels_also_when_pad_is_eos(monkeypatch, tmp_path):
    """GPT-2's tokenizer has no pad token: the end token must still be learnt, and padding never."""
    tokenizer, batches = tiny.byte_tokenizer(), []
    tokenizer.pad_token = tokenizer.eos_token
    encoder = PromptEncoder(tokenizer, "<EOU>", 128)
    rows = [sft.example(encoder, Dialogue(["Hi ."], reference="No" * n), learn_eos=True) for n in (1, 2, 5)]
    compute_loss = SFTTrainer.compute_loss

    def spy(self, model, inputs, *args, **kwargs):
        batches.append({name: tensor.clone() for name, tensor in inputs.items() if isinstance(tensor, torch.Tensor)})
        return compute_loss(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(SFTTrainer, "compute_loss", spy)
    config = sft.SFTConfig(data_path="unused", output=str(tmp_path / "sft"), max_steps=1, batch_size=3, device="cpu")
    fine_tuned(config, tokenizer, rows, [])
    seen = sorted(
        (ids[mask.bool()].tolist(), labels[mask.bool()].tolist(), labels[~mask.bool()].tolist())
        for ids, labels, mask in zip(
            batches[0]["input_ids"], batches[0]["labels"], batches[0]["attention_mask"], strict=True
        )
    )
    longest = max(row["length"] for row in rows)
    assert seen == sorted((row["input_ids"], row["labels"], [-100] * (longest - row["length"])) for row in rows)
    assert all(labels[-1] == tokenizer.eos_token_id for _, labels, _ in seen)


def test_token_loss_is_the_mean_over_labelled_tokens_one_row_at_a_time():
    encoder, lm = PromptEncoder(tiny.byte_tokenizer(), "<EOU>", 128), tiny.gpt2()
    dialogues = [Dialogue(turns[:1], reference=turns[1]) for turns, _ in tiny.dialogues(5)]
    rows = [sft.example(encoder, dialogue) for dialogue in dialogues]
    losses = []
    with torch.no_grad():
        for row in rows:
            logprobs = lm.eval()(torch.tensor([row["input_ids"]])).logits[0].log_softmax(-1)
            for position, label in enumerate(row["labels"]):
                if label != -100:
                    losses.append(-logprobs[position - 1, label].item())
    lm.train()
    assert sft.token_loss(lm, rows, batch_size=2) == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert lm.training


def test_patience_stops_and_keeps_the_best_weights(caplog, tmp_path):
    caplog.set_level("INFO", logger="rlhf_dialog")
    tokenizer = tiny.byte_tokenizer()
    keys = {"max_steps": 8, "evals": 8, "patience": 2, "learning_rate": 5.0, "device": "cpu"}
    config = sft.SFTConfig(data_path="unused", output=str(tmp_path / "sft"), **keys)
    encoder = PromptEncoder(tokenizer, "<EOU>", 128)
    rows = [sft.example(encoder, Dialogue(turns[:1], reference=turns[1])) for turns, _ in tiny.dialogues(5)]
    stage = fine_tuned(config, tokenizer, rows, rows)
    assert [point["step"] for point in stage.watch.points] == [0, 1, 2]  # such a learning rate never helps
    assert stage.watch.best_step == 0
    before = tiny.gpt2().state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in stage.model.state_dict().items())
    assert "stopped" in caplog.text


def test_prompts_of_the_data_that_lose_part_of_their_newest_turn_are_counted(tmp_path, caplog):
    for split, turn in (("train", "far too long"), ("validation", "short")):
        (tmp_path / f"{split}.jsonl").write_text(f'{{"dialog": ["{turn}", "c d"]}}\n')
    keys = {"data_path": str(tmp_path), "output": "x", "max_prompt_length": 8, "n_layer": 1, "n_head": 1, "n_embd": 8}
    stage = sft.SFT(sft.SFTConfig(**keys, vocab_size=300), tmp_path / "x", lambda line: None)
    stage.training, stage.held_out = stage.read()
    stage.start()
    (line,) = [line for line in caplog.messages if "newest turn" in line]
    assert line.startswith("1 of 2 prompts lose the beginning of their newest turn: max_prompt_length is 8, and ")
