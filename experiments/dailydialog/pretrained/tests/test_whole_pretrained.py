"""A pretrained size at its smallest: every stage to the tables, in this process, with a model that the test makes."""

import json
import re

import pytest
import torch
from transformers import BertConfig, BertModel

from experiments.dailydialog.tests.in_process import run_here, run_whole, texts_in
from experiments.everyday_dialogues.dialogues import write_dialogues
from rlhf_dialog.training.supervised.new_tokenizers import new_pair_tokenizer
from tests.parts import tiny

TURNS = ("Do you like jazz ?", "I prefer quiet evenings .", "Why is that ?", "My neighbours sleep early .")


def save_encoder(folder):
    """A BERT of random weights, as --fetched has MiniLM."""
    tokenizer = new_pair_tokenizer(list(TURNS), 400, 64)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_chitchat(folder):
    folder.mkdir(parents=True)
    for split in ("train", "validation", "test"):
        rows = [{"dialog": [*(f"{turn} {split} {i}" for turn in TURNS)]} for i in range(12)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def save_chat_model(folder, template=tiny.CHATML):
    tokenizer = tiny.chat_tokenizer(template)
    tiny.llama(vocab_size=len(tokenizer), max_position_embeddings=1024, num_hidden_layers=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Made-up dialogues with acts, and what is fetched."""
    root = tmp_path_factory.mktemp("world")
    write_dialogues(root / "data", 120, seed=0)
    save_encoder(root / "fetched/minilm")
    write_chitchat(root / "fetched/chitchat")
    save_chat_model(root / "chat_model")
    return root


def words_of(world, work):
    places = {"data_path": world / "data", "work": work, "fetched": world / "fetched", "model": world / "chat_model"}
    return [
        *(str(word) for name, place in places.items() for word in (f"--{name}", place)),
        "--size",
        "pretrained_tiny",
    ]


@pytest.fixture(scope="module")
def work(world, tmp_path_factory):
    """The folder of a run to its end."""
    folder = tmp_path_factory.mktemp("whole") / "work"
    run_whole(words_of(world, folder))
    return folder


def table_of(work):
    """The tables without what a clock has measured."""
    text = (work / "results.md").read_text(encoding="utf-8").split("## What was trained")[0]
    return re.sub(r"\| \d+ \|$", "|", text, flags=re.MULTILINE)


def test_every_stage_ends_and_the_tables_have_every_row_and_no_text(work, world):
    table = (work / "results.md").read_text(encoding="utf-8")
    assert texts_in(table, world / "data") == []
    sections = {part.partition("\n")[0].partition(":")[0]: part for part in table.split("\n## ")}
    first = sections["Temperature 1"]
    untrained = ("SFT", "SFT, greedy", "SFT, bias learned from the score", "nearest train reply", "true replies")
    for row in ("PPO by rloo", "PPO by gae", "long constant reply", *untrained):
        assert f"\n| {row} |" in first, row
    for count in (2, 4):
        assert f"\n| SFT, best of {count} (reads the reference) |" in first
        assert f"\n| SFT, best of {count} by a prediction |" in first
    columns = ("ROUGE-1", "ROUGE-Lsum", "METEOR", "SacreBLEU", "intent", "length", "METEOR, `<EOU>`", "METEOR margin")
    for column in (*columns, "reward"):
        assert f"| {column} |" in first, column
    assert re.search(r"FPS: [\d.]+ by rloo and [\d.]+ by gae", first)
    assert sections["In percent of SFT, as OpenRL's documentation has it"].count("%") >= 12
    assert "| OpenRL, PPO | 13.2 |" in sections["Beside what was published"]
    assert sections["A chat"].count("| Do you like jazz ? test") == 3
    assert "nats a word with its end" in sections["What was trained"]
    assert "| judge, MiniLM |" in sections["The judges of acts on people's replies"]
    assert "Of 8 most likely continuations" in sections["Has the start seen the test split?"]


def test_what_was_chosen_is_older_than_what_was_read_of_test(work):
    chosen = json.loads((work / "chosen.json").read_text())
    assert chosen["settings"]["rloo"] in [{"lr": lr} for lr in (1e-4, 3e-4)]
    assert chosen["settings"]["gae"] in [{"lr": lr, "critic_lr": 1e-3} for lr in (1e-5, 3e-5)]
    assert {"start_0", "rloo_1_0", "gae_0_0"} <= chosen["validation"].keys()
    assert (work / "chosen.json").stat().st_mtime <= min(
        path.stat().st_mtime for path in (work / "test").rglob("*.npz")
    )
    assert not list(work.glob("*/*/checkpoints"))
    for name in ("rloo", "gae"):
        rows = [json.loads(line) for line in (work / f"table/replies_{name}.jsonl").read_text().splitlines()]
        assert rows[0]["replies"].keys() == {"before", "after"}


def test_a_stopped_one_goes_on_and_does_nothing_again(work, world):
    before, ran = table_of(work), []
    for name in ("test/at_1/rows.json", "test/at_1/greedy.npz", "results.md"):
        (work / name).unlink()

    def noted(some, *_, **__):
        ran.extend(job.name for job in some if not job.output.exists())
        run_here(some)

    run_whole(words_of(world, work), noted)
    assert ran == ["at_1"]
    assert table_of(work) == before
