import json
import math

import pytest
import tiny
import torch
from processes import load_script
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTTrainer

from rlhf_dialog.cli import run_script
from rlhf_dialog.dialogue import Dialogue
from rlhf_dialog.prompts import PromptEncoder

SMALL = ["--n_layer", "1", "--n_embd", "32", "--n_head", "2", "--vocab_size", "300", "--device", "cpu", "--evals", "1"]
THREADS = ["--pytorch_threads", "1"]
sft = load_script("scripts/train_sft.py")


def run(*argv: str) -> int:
    return run_script(sft.main, sft.SFTConfig, sft.__doc__, [*argv, *THREADS])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(tiny.write_data(tmp_path_factory.mktemp("data"), 20))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("sft") / "out"
    assert run("--data_path", data, "--output", str(output), "--max_steps", "8", "--learning_rate", "1e-2", *SMALL) == 0
    return output


def test_the_folder_loads_as_a_causal_lm_with_its_tokenizer(trained):
    lm = AutoModelForCausalLM.from_pretrained(trained)
    tokenizer = AutoTokenizer.from_pretrained(trained)
    assert sorted(path.name for path in trained.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
    ]
    assert lm.get_input_embeddings().num_embeddings == len(tokenizer) == 300
    assert lm.config.n_layer == 1
    assert (lm.config.eos_token_id, lm.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)


def test_the_new_tokenizer_keeps_separator_pad_and_eos_apart(trained):
    tokenizer = AutoTokenizer.from_pretrained(trained)
    separator = tokenizer.convert_tokens_to_ids("<EOU>")
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, separator}) == 3
    assert tokenizer(" <EOU>")["input_ids"] == tokenizer("<EOU>")["input_ids"] == [separator]
    ids = tokenizer("Hi . <EOU> Grüße 🙂 <EOU>")["input_ids"]
    assert ids.count(separator) == 2
    assert tokenizer.decode(ids) == "Hi .<EOU> Grüße 🙂<EOU>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Hi . Grüße 🙂"


def test_the_report_has_losses_config_and_counts(trained):
    report = json.loads((trained / "training.json").read_text(encoding="utf-8"))
    before, after = report["validation"]
    assert (before["step"], after["step"]) == (0, 8)
    assert before["loss"] == pytest.approx(math.log(300), abs=0.3)  # a random model knows nothing
    assert after["loss"] < before["loss"] - 0.5
    assert after["perplexity"] == pytest.approx(math.exp(after["loss"]))
    assert report["num_train_prompts"] == 4 * (3 + 1 + 6 + 2 + 5)  # tiny's five templates, one prompt per later turn
    assert report["config"]["n_embd"] == 32
    assert {"torch", "transformers", "trl", "rlhf-dialog"} <= set(report["versions"])


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


def test_the_trainer_sees_those_labels_also_when_pad_is_eos(data, tmp_path, monkeypatch):
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
    config = sft.SFTConfig(data_path=data, output="unused", max_steps=1, batch_size=3, device="cpu")
    sft.fine_tune(config, tiny.gpt2(), tokenizer, rows, sft.Validation([], config))
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


def test_patience_stops_and_keeps_the_best_weights(data, caplog):
    caplog.set_level("INFO", logger="rlhf_dialog")
    lm, tokenizer = tiny.gpt2(), tiny.byte_tokenizer()
    before = {name: tensor.clone() for name, tensor in lm.state_dict().items()}
    config = sft.SFTConfig(
        data_path=data, output="unused", max_steps=8, evals=8, patience=2, learning_rate=5.0, device="cpu"
    )
    encoder = PromptEncoder(tokenizer, "<EOU>", 128)
    rows = [sft.example(encoder, Dialogue(turns[:1], reference=turns[1])) for turns, _ in tiny.dialogues(5)]
    watch = sft.Validation(rows, config)
    sft.fine_tune(config, lm, tokenizer, rows, watch)
    assert [point["step"] for point in watch.points] == [0, 1, 2]  # such a learning rate never helps
    assert watch.best_step == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in lm.state_dict().items())
    assert "stopped" in caplog.text


def test_starts_from_a_model_folder_and_keeps_its_tokenizer(data, tmp_path):
    tiny.gpt2().save_pretrained(tmp_path / "start")
    tiny.byte_tokenizer().save_pretrained(tmp_path / "start")
    output = tmp_path / "out"
    argv = ["--data_path", data, "--model_path", str(tmp_path / "start"), "--output", str(output), "--max_steps", "3"]
    assert run(*argv, "--learning_rate", "1e-3") == 0
    assert len(AutoTokenizer.from_pretrained(output)) == len(tiny.byte_tokenizer())
    changed = AutoModelForCausalLM.from_pretrained(output).state_dict()["lm_head.weight"]
    start = tiny.gpt2().state_dict()["lm_head.weight"]
    assert 0 < (changed - start).abs().max() < 0.01


def test_the_same_seed_gives_the_same_weights(data, tmp_path):
    for name in ("a", "b"):
        output = str(tmp_path / name)
        assert run("--data_path", data, "--output", output, "--max_steps", "2", "--seed", "3", *SMALL) == 0
    first, second = (AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("a", "b"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_data_without_validation_trains_with_a_notice(tmp_path, capsys):
    data = tmp_path / "only_train.jsonl"
    rows = [json.dumps({"dialog": turns, "act": acts}) for turns, acts in tiny.dialogues(10)]
    data.write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert run("--data_path", str(data), "--output", str(tmp_path / "out"), "--max_steps", "1", *SMALL) == 0
    assert "no perplexity" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "training.json").read_text(encoding="utf-8"))["validation"] == []


def test_a_broken_validation_split_is_an_error(data, tmp_path, capsys):
    broken = tiny.write_data(tmp_path / "data", 5)
    (broken / "validation" / "dialogues_validation.txt").write_text("one turn __eou__\n", encoding="utf-8")
    assert run("--data_path", str(broken), "--output", str(tmp_path / "out"), "--max_steps", "1", *SMALL) == 2
    assert "dialogues_act_validation.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--data_path", "/nowhere/data"], ["/nowhere/data"]),
        (["--model_path", "/nowhere/model"], ["model_path: ", "/nowhere/model"]),
        (["--n_embd", "30", "--n_head", "4"], ["n_embd", "multiple"]),
        (["--max_prompt_length", "256"], ["max_prompt_length", "256 positions"]),
        (["--learning_rate", "-1"], ["learning_rate"]),
        (["--lr", "1"], ["lr: unknown key"]),
    ],
)
def test_mistakes_are_exit_code_2_and_write_nothing(extra, words, data, tmp_path, capsys):
    assert run("--data_path", data, "--output", str(tmp_path / "out"), "--max_steps", "1", *extra) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words), error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_holds_something_is_refused(data, trained, capsys):
    before = (trained / "model.safetensors").stat().st_mtime_ns
    assert run("--data_path", data, "--output", str(trained), "--max_steps", "1", *SMALL) == 2
    assert "already holds" in capsys.readouterr().err
    assert (trained / "model.safetensors").stat().st_mtime_ns == before


def test_help_and_print_config(capsys):
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert all(f"--{key}" in text for key in sft.SFTConfig.model_fields)
    assert run("--data_path", "x", "--output", "y", "--print_config") == 0
    assert "learning_rate: 5.0e-05" in capsys.readouterr().out
