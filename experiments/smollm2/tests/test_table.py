"""The table of the chat model: its rows with tiny models, what is kept, and its intervals."""

import json

import numpy as np
import pytest
import yaml
from transformers import BertConfig, BertModel

from experiments.smollm2 import best_of
from experiments.smollm2 import table as chat_table
from experiments.smollm2.named import NAMES
from experiments.smollm2.table import AGENTS, PEOPLE, START, by_tokens, markdown, summary
from rlhf_dialog.data.chat_template import TemplateEncoder
from rlhf_dialog.data.dialogue import Dialogue
from tests.parts.tiny import byte_tokenizer, chat_tokenizer, gpt2


@pytest.fixture
def world(tmp_path):
    """A start, two agents, an encoder, dialogues, and the YAML of the runs."""
    for seed, name in enumerate(("start", "first", "second")):
        gpt2(seed, vocab_size=261).save_pretrained(tmp_path / name)
        chat_tokenizer().save_pretrained(tmp_path / name)
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path / "encoder")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path / "encoder")
    (tmp_path / "data").mkdir()
    for split in ("train", "validation", "test"):
        lines = [json.dumps({"dialog": [f"Hello {i} .", f"Is it {i} ?", "Yes ."]}) + "\n" for i in range(9)]
        (tmp_path / "data" / f"{split}.jsonl").write_text("".join(lines))
    settings = {
        "model_path": str(tmp_path / "start"),
        "env": {"args": {"data_path": str(tmp_path / "data")}},
        "turn_separator": "chat_template",
        "system_prompt": "Be brief .",
        "max_new_tokens": 6,
        "reward_class": {"id": "LengthMatch"},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path


def table(world, *words):
    given = ["--config", str(world / "run.yaml"), "--encoder", str(world / "encoder"), "--max_prompts", "14"]
    agents = [word for name in ("first", "second") for word in ("--agent", str(world / name))]
    places = ["--work", str(world / "work"), "--output", str(world / "table.json")]
    return chat_table.main([*given, *agents, *places, *words])


def test_every_row_is_written_once_and_measured(world, capsys, monkeypatch):
    assert table(world, "--system_prompt", "null", "--best_of", "--bias", "--score", "--likelihood") == 0
    result = json.loads((world / "table.json").read_text())
    best = [f"{START}, best of 4 (reads the reference)", f"{START}, best of 4 by a prediction"]  # LengthMatch reads it
    rows = [AGENTS, PEOPLE, START, f"{START}, system prompt: null", *best, "start, mean logit shift"]
    assert list(result["rows"]) == rows
    assert set(result["preferred"]) == set(result["difference"]) == set(rows[1:])
    shown = capsys.readouterr().out
    assert [name for name in rows if f"| {name} |" not in shown] == []
    most, predicted, start = (result["rows"][name]["score"]["mean"] for name in (*best, START))
    assert most >= max(predicted, start)
    kept = {path: path.stat().st_mtime_ns for path in (world / "work").iterdir()}
    assert len(kept) == 7  # not those of people
    monkeypatch.setattr(chat_table.Table, "generate", None)  # nothing is written again
    assert table(world, "--system_prompt", "null", "--best_of", "--bias", "--score", "--likelihood") == 0
    assert {path: path.stat().st_mtime_ns for path in (world / "work").iterdir()} == kept
    assert json.loads((world / "table.json").read_text()) == result


def test_a_stopped_table_goes_on_with_the_next_row(world):
    assert table(world) == 0
    whole = json.loads((world / "table.json").read_text())["rows"]
    lost = next((world / "work").glob("agents_2*"))
    before = lost.read_text()
    lost.unlink()
    assert table(world) == 0
    assert lost.read_text() == before
    assert json.loads((world / "table.json").read_text())["rows"] == whole


def test_the_agents_are_one_row_of_all_seeds():
    """Means over seeds and prompts; a share of prompts where ties count half."""
    keys = ("encoder_similarity", "likelihood", "score")
    agents = {
        f"{AGENTS} {i}": dict.fromkeys(keys, np.asarray(x)) for i, x in ((1, [1.0, 2, 3, 4]), (2, [3.0, 2, 1, 0]))
    }
    result = summary({PEOPLE: dict.fromkeys(keys, np.full(4, 2.0)), **agents}, 2, np.arange(4))
    assert result["rows"][AGENTS]["score"]["mean"] == 2.0
    assert result["agents"]["agent 1"]["score"]["mean"] == 2.5
    assert result["difference"][PEOPLE]["score"]["mean"] == 0.0
    assert result["preferred"][PEOPLE]["encoder_similarity"]["mean"] == pytest.approx(
        (0 + 0.5 + 1 + 1 + 1 + 0.5 + 0 + 0) / 8
    )
    assert markdown(result).splitlines()[2].startswith(f"| {AGENTS} | 2.000 [")


@pytest.fixture
def named_world(world):
    """The same with names and system messages in the rows, none in the YAML, and the ids of every prompt that is answered."""
    for split in ("train", "validation", "test"):
        rows = [
            {"prompt": f"Is it {i} ?", "reference": "Yes .", "system": f"You talk to {name} .", "name": name}
            for i, name in enumerate(["Zuri", "Joost"] * 4)
        ]
        lines = [json.dumps(row) + "\n" for row in rows]
        (world / "data" / f"{split}.jsonl").write_text("".join(lines))
    settings = yaml.safe_load((world / "run.yaml").read_text())
    (world / "run.yaml").write_text(yaml.safe_dump({**settings, "system_prompt": None}))
    return world


def test_the_ids_of_each_system_prompt_differ_and_hold_the_name(named_world, monkeypatch):
    seen, encode = [], TemplateEncoder.encode_prompt

    def encode_prompt(self, turns, system=None, *more):
        ids = encode(self, turns, system, *more)
        seen.append(self.tokenizer.decode(ids))
        return ids

    monkeypatch.setattr(TemplateEncoder, "encode_prompt", encode_prompt)
    prompts = ["Say {name} first .", 'Call {name} by name . Example : "{name} , yes ."', "Be brief .", "null"]
    assert table(named_world, *(word for text in prompts for word in ("--system_prompt", text))) == 0
    start, agents, behind = seen[:8], seen[-16:], [seen[i : i + 8] for i in range(8, 40, 8)]
    assert agents == start * 2
    for i, name in enumerate(["Zuri", "Joost"] * 4):
        texts = [start[i], *(some[i] for some in behind)]
        assert len(set(texts)) == 5
        assert [text.count(name) for text in texts] == [1, 1, 2, 0, 0]
        assert "Be brief ." in texts[3]


def test_what_needs_no_model_uses_the_name_of_the_row(named_world):
    (named_world / "templates.txt").write_text("{name} .\nYes , {name} , it is that .\n")
    words = [
        "--templates",
        str(named_world / "templates.txt"),
        "--behind_name",
        "--replies",
        str(named_world / "said.jsonl"),
    ]
    assert table(named_world, *words) == 0
    rows = [json.loads(line) for line in (named_world / "said.jsonl").read_text().splitlines()]
    assert [row["replies"]["best template"]["response"] for row in rows[:2]] == [
        "Zuri .",
        "Joost .",
    ]  # as long as "Yes ."
    assert all(row["replies"]["start behind the name"]["response"].startswith(("Zuri, ", "Joost, ")) for row in rows)


def test_prompts_of_a_file_take_the_place_of_the_split(named_world):
    (named_world / "lines.jsonl").write_text('{"prompt": "My hat is gone .", "name": "Zuri"}\n')
    words = ["--prompts", str(named_world / "lines.jsonl"), "--replies", str(named_world / "said.jsonl")]
    assert table(named_world, *words) == 0
    (row,) = [json.loads(line) for line in (named_world / "said.jsonl").read_text().splitlines()]
    assert row["prompt"] == ["My hat is gone ."]


def test_a_slot_without_a_name_is_refused(world, capsys):
    assert table(world, "--system_prompt", "Say {name} first .") == 2
    assert "name" in capsys.readouterr().err


def test_the_best_replies_keep_the_system_message_of_their_prompt(named_world):
    words = ["--config", str(named_world / "run.yaml"), "--output", str(named_world / "best"), "--draws", "2"]
    assert best_of.main(words) == 0
    rows = [json.loads(line) for line in (named_world / "best" / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 8
    assert {row["system"] for row in rows} == {"You talk to Zuri .", "You talk to Joost ."}


def test_the_rule_is_counted_by_the_tokens_of_the_name():
    number = dict(line.split("\t")[::2] for line in NAMES.read_text(encoding="utf-8").splitlines()[1:])
    few, many = (next(name for name, tokens in number.items() if tokens == wanted) for wanted in ("2", "5"))
    prompts = [Dialogue(["Hi"], meta={"name": name}) for name in (few, many, few)]
    measured = {PEOPLE: {"follows_rule": np.asarray([1.0, 1.0, 0.0])}, START: {"asks": np.zeros(3)}}
    assert by_tokens(measured, prompts) == {2: {"prompts": 2, PEOPLE: 0.5}, 5: {"prompts": 1, PEOPLE: 1.0}}
    assert by_tokens(measured, [Dialogue(["Hi"])] * 3) == {}
