import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_dialog.commands.supervised import sft as train_sft
from tests.parts import tiny

pytestmark = pytest.mark.slow

SMALL = ["--n_layer", "1", "--n_embd", "32", "--n_head", "2", "--vocab_size", "300", "--device", "cpu", "--evals", "1"]
THREADS = ["--pytorch_threads", "1"]


def run(*argv: str) -> int:
    return train_sft.main([*argv, *THREADS])


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
    names = "config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json training.json"
    assert sorted(path.name for path in trained.iterdir()) == names.split()
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


def test_an_output_that_holds_something_is_refused(data, trained, capsys):
    before = (trained / "model.safetensors").stat().st_mtime_ns
    assert run("--data_path", data, "--output", str(trained), "--max_steps", "1", *SMALL) == 2
    assert "is not empty" in capsys.readouterr().err
    assert (trained / "model.safetensors").stat().st_mtime_ns == before
