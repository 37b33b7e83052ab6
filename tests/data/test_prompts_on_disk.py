"""Prompts that are made when they are drawn are those of a reader that holds all rows: in any order, of every format."""

import hashlib
import json
import os
import pickle
import random

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_dialog.data.chat_template import keep_with_room, prompt_encoder
from rlhf_dialog.data.dialogue import tools_of
from rlhf_dialog.data.overlap import find_repeats, long_utterances
from rlhf_dialog.data.prompts import (
    PromptRules,
    count_missing,
    data_fingerprint,
    prompts_of,
    shared_system,
)
from rlhf_dialog.data.sources import SPLITS, from_hub, load_records
from rlhf_dialog.errors import UserError
from tests.parts.data_files import WRITERS, jsonl_bytes, rows_of, write_split, zipped
from tests.parts.tiny import CHATML, chat_tokenizer
from tests.test_data_docs import BLOCKS


def all_at_once(path, split, rules, needs=()):
    """The prompts by a second reader, which holds all records."""
    records = load_records(path, split, rules.columns, rules.split, rules.turn_separator == "chat_template")
    repeats = set()
    if rules.drop_overlap:
        held_out = [long_utterances(one) for name in SPLITS[1:] for one in load_records(path, name)]
        repeats = find_repeats([long_utterances(one) for one in records], held_out)
    found, first = [], {}
    for number, record in enumerate(records):
        if number not in repeats:
            name = next((name for name in ("dialog_id", "id") if record.is_prompt and name in record.meta), None)
            dialogue = number if name is None else first.setdefault(record.meta[name], number)
            for prompt in prompts_of(record, rules):
                found.append(prompt.from_origin(split=split, index=len(found), dialogue=dialogue))
    return [one for one in found if not (needs and one.meta.get("unanswered"))]


def hash_of(prompts):
    rows = []
    for one in prompts:
        system = [] if one.system is None else [one.system]
        rows.append([one.prompt_turns, one.reference, one.references, one.act, *system, *tools_of(one.system)])
    digest = hashlib.sha256("".join(json.dumps(row) + "\n" for row in rows).encode())
    return f"{len(rows)} prompts, {digest.hexdigest()[:16]}"


def same(prompts, expected, path):
    """Whether the prompts are the expected ones, with their origin, in order, as they are drawn, and in another process."""
    assert len(prompts) == len(expected)
    assert data_fingerprint(prompts) == hash_of(expected)
    order = random.Random(1).sample(range(len(expected)), len(expected))
    copy = pickle.loads(pickle.dumps(prompts))
    copy.open(path)
    for found in (list(prompts), {i: prompts[i] for i in order}, {i: copy[i] for i in order}):
        assert all(found[i] == expected[i] and found[i].origin == expected[i].origin for i in order)
    assert prompts.places.itemsize + prompts.dialogues.itemsize + prompts.numbers.itemsize == 16
    for name in ("reference", "act"):
        assert count_missing(prompts, name) == sum(getattr(one, name) is None for one in expected)
    systems = {one.system for one in expected}
    assert shared_system(prompts) == (systems.pop() if len(systems) == 1 else None)


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format(tmp_path, kind):
    path, rows = str(WRITERS[kind](tmp_path)), rows_of("train")
    prompts = PromptRules(context_size=2).load(path, "train")
    replies = [(number, i) for number, row in enumerate(rows) for i in range(1, len(row["dialog"]))]
    assert [(one.prompt_turns, one.reference, one.act, one.origin["dialogue"]) for one in prompts] == [
        (rows[n]["dialog"][max(0, i - 2) : i], rows[n]["dialog"][i], rows[n]["act"][i], n) for n, i in replies
    ]
    same(prompts, all_at_once(path, "train", PromptRules(context_size=2)), path)


def test_data_sets_of_the_hub_and_of_camrest(tmp_path, monkeypatch):
    rows = {name: rows_of(split) for name, split in (("somebody/talk", "train"),)}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, **_: datasets.Dataset.from_list(rows[name]))
    monkeypatch.setattr(from_hub, "hub_reachable", lambda: True)
    said = [
        {"usr": {"transcript": f"u{i}", "dialog_act": {}}, "sys": {"sent": f"s{i}", "dialog_act": {}}} for i in range(4)
    ]
    goal = {"text": "Eat .", "info": {}, "reqt": []}
    talks = [{"dial": said[: 1 + i % 4], "goal": goal, "dialogue_id": i} for i in range(9)]
    (tmp_path / "train.json.zip").write_bytes(zipped({"train.json": json.dumps(talks).encode()}))
    for path, last in (("somebody/talk", rows["somebody/talk"][-1]["dialog"][-1]), (str(tmp_path), "s0")):
        prompts = PromptRules(3).load(path, "train")
        assert prompts[len(prompts) - 1].reference == last
        same(prompts, all_at_once(path, "train", PromptRules(3)), path)


@pytest.mark.parametrize(("language", "text"), [(one[0], one[2]) for one in BLOCKS if not one[1]])
def test_every_example_of_the_page(tmp_path, language, text):
    path = tmp_path / f"example.{language}"
    path.write_text(text, encoding="utf-8")
    for rules in (PromptRules(unanswered=True), PromptRules(50, turn_separator="chat_template", unanswered=True)):
        same(rules.load(str(path), "train"), all_at_once(str(path), "train", rules), str(path))


ROLES = ("user", "assistant")
TOOL = {"type": "function", "function": {"name": "look", "arguments": {"day": "Friday"}}}
SAID = [{"role": "user", "content": "One <x> two ?"}, {"role": "assistant", "content": "Three four five six ."}]
TALKS = [
    {"messages": [{"role": "system", "content": f"You sell {what} ."}, *SAID, *SAID], "id": i % 5}
    for i, what in enumerate(["bread"] * 6 + ["tea"] * 6 + ["word " * 60])
]
ROWS = {
    "talks": [
        *TALKS,
        *({"messages": SAID[::-1] + SAID} for _ in range(6)),
        {"messages": [*SAID[:1], {"role": "user", "content": " "}]},
    ],
    "tools": [
        {"messages": [SAID[0], {"role": "assistant", "tool_calls": [TOOL]}, {"role": "tool", "content": "5"}, SAID[1]]},
        *({"messages": SAID, "tools": [{"type": "function", "function": {"name": "look"}}]} for _ in range(3)),
    ],
    "prompts": [
        {"prompt": f"a{i} <EOU> ?", "reference": "[b]" if i % 3 else None, "id": [7, 8, 7, None][i % 4]} for i in range(40)
    ],
    "disliked": [{"prompt": f"a{i}", "completion": "b", "label": bool(i % 3)} for i in range(9)],
    "utterances": [{"dialog_id": i // 3, "utterance": f"text {i}"} for i in range(30)],
    "tree": [
        {"message_id": str(i), "parent_id": str(i // 2 or "") or None, "text": f"t{i}", "role": ROLES[i.bit_length() % 2]}
        for i in range(1, 30)
    ],
    "transcripts": [
        *({"prompt": f"Human: a{i}\n\nAssistant:", "reference": "b"} for i in range(12)),
        {"prompt": "c", "reference": "d"},
    ],
    "marked": [{"prompt": f"a{i}", "reference": "b <eot>" if i == 7 else "b"} for i in range(20)],
}  # fmt: skip


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("separator", ["|", "chat_template"])
def test_every_layout_and_what_has_room(tmp_path, kind, separator):
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + jsonl_bytes(ROWS[kind]))
    rules, path = PromptRules(3, turn_separator=separator, unanswered=True), str(tmp_path / "a.jsonl")
    for needs in ((), ("reference",)):
        same(rules.load(path, "train", needs), all_at_once(path, "train", rules, needs), path)
    tokenizer = chat_tokenizer(CHATML.replace("<|im_end|>", "<eot>"))
    tokenizer.add_special_tokens({"extra_special_tokens": ["<eot>"]})
    encoder, prompts = prompt_encoder(tokenizer, separator, 120), rules.load(path, "train")
    kept = keep_with_room(encoder, prompts)
    assert list(kept) == keep_with_room(encoder, list(prompts))
    assert data_fingerprint(kept) == hash_of(kept)
    assert (len(kept) < len(prompts)) == (kind == "talks" or (kind in ("marked", "tools") and separator != "|"))


def test_columns_and_a_column_with_the_split(tmp_path):
    rows = [{"talk": ["a", f"b{i}", "c"], "split": SPLITS[i % 3], "dialog": ["x"]} for i in range(20)]
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes(rows))
    rules = PromptRules(columns={"messages": "talk"})
    prompts = rules.load(str(tmp_path / "a.jsonl"), "validation")
    assert [one.reference for one in prompts][::2] == [f"b{i}" for i in range(20) if i % 3 == 1]
    same(prompts, all_at_once(str(tmp_path / "a.jsonl"), "validation", rules), str(tmp_path / "a.jsonl"))


def test_a_separator_becomes_a_space_in_what_is_drawn(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes(ROWS["prompts"]))
    prompts = PromptRules().load(str(tmp_path / "a.jsonl"), "train")
    assert {one.prompt_turns[0] for one in prompts} == {f"a{i} ?" for i in range(40)}
    assert prompts[39].prompt_turns == ["a39 ?"]


def test_drop_overlap(tmp_path):
    for split in SPLITS:
        rows = [{"dialog": [f"We met at the harbour {i} .", "Yes"]} for i in range(2 if split == "test" else 9)]
        rows = (
            [row | {"dialog": [f"{row['dialog'][0]} {split}", "Yes"]} for row in rows]
            if split == "validation"
            else rows
        )
        (tmp_path / f"{split}.jsonl").write_bytes(jsonl_bytes(rows))
    rules = PromptRules(drop_overlap=True)
    prompts = rules.load(str(tmp_path), "train")
    assert [one.origin["dialogue"] for one in prompts] == [2, 3, 4, 5, 6, 7, 8]
    same(prompts, all_at_once(str(tmp_path), "train", rules), str(tmp_path))


def test_row_groups_of_parquet(tmp_path):
    rows = [{"dialog": [f"a{i}", f"b{i}"]} for i in range(10)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=3)
    path = str(tmp_path / "a.parquet")
    same(PromptRules().load(path, "train"), all_at_once(path, "train", PromptRules()), path)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "text", "save_to_disk"])
def test_a_file_that_changes_is_named_when_a_prompt_is_drawn(tmp_path, kind):
    if kind == "text":
        path = write_split(tmp_path, "a __eou__ b __eou__\n" * 3)
        file = tmp_path / "train/dialogues_train.txt"
    elif kind == "save_to_disk":
        path = WRITERS[kind](tmp_path)
        file = next((path / "train").glob("*.arrow"))
    else:
        path = file = tmp_path / f"a.{kind}"
        pq.write_table(pa.Table.from_pylist(rows_of("train")), path)
        if kind == "jsonl":
            path.write_bytes(jsonl_bytes(rows_of("train")))
    prompts = PromptRules().load(str(path), "train")
    assert prompts[1] == prompts[1]
    os.utime(file, ns=(0, 0))
    with pytest.raises(UserError, match="has changed") as caught:
        prompts[1]
    assert str(file) in str(caught.value)
    file.unlink()
    with pytest.raises(UserError, match=file.name):
        prompts[1]


@pytest.mark.parametrize(
    "others", [rows_of("train")[1:], [{"dialog": row["dialog"][::-1]} for row in rows_of("train")]]
)
def test_a_copy_for_another_process_needs_the_same_prompts(tmp_path, others):
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl_bytes([{"dialog": row["dialog"]} for row in rows_of("train")]))
    copy = pickle.loads(pickle.dumps(PromptRules().load(str(path), "train")))
    path.write_bytes(jsonl_bytes(others))
    with pytest.raises(UserError, match="rank 0"):
        copy.open(str(path))
