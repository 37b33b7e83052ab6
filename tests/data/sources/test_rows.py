"""Rows: their forms, cells of CSV files, messages with roles, turns and acts, and what is said of rows that are none."""

import json

import pytest

from rlhf_dialog.data.sources import DialogueRecord, load_records
from rlhf_dialog.errors import UserError
from tests.parts.data_files import TWO, jsonl_bytes, load, parquet_bytes


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (
            {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hey"}]},
            DialogueRecord(TWO, roles=["user", "assistant"]),
        ),
        (
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hey"}]},
            DialogueRecord(TWO, roles=["human", "gpt"]),
        ),
        ({"conversation": TWO, "act": ["question", "Inform"]}, DialogueRecord(TWO, [2, 1])),
        ({"dialogue": TWO, "act": [2.0, 1.0]}, DialogueRecord(TWO, [2, 1])),
        ({"utterances": [" Hi ", "Hey"], "acts": [2, 1], "id": 7}, DialogueRecord(TWO, [2, 1], meta={"id": 7})),
        ({"turns": [{"utterance": text, "speaker": 1} for text in TWO]}, DialogueRecord(TWO, roles=["1", "1"])),
        ({"turns": TWO, "act": ["2", "1.0"]}, DialogueRecord(TWO, [2, 1])),
        ({"dialog": TWO, "act": [None, None]}, DialogueRecord(TWO)),
        ({"dialog": TWO, "topic": "greetings"}, DialogueRecord(TWO, meta={"topic": "greetings"})),
        ({"dialog": TWO, "references": [None, ["Yo ", "Hi"]]}, DialogueRecord(TWO, references=[[], ["Yo", "Hi"]])),
        (
            {"turns": [{"text": TWO[0], "act": 2}, {"text": TWO[1], "act": 1, "references": ["Hi"]}]},
            DialogueRecord(TWO, acts=[2, 1], references=[[], ["Hi"]]),
        ),
        (
            {
                "messages": [
                    {"role": "system", "content": "s"},
                    *({"role": "user", "content": t, "act": 3} for t in TWO),
                ]
            },
            DialogueRecord(TWO, [3, 3], meta={"system": "s"}, roles=["user", "user"], system=[(0, "s")]),
        ),
        (
            {"messages": [{"role": "system", "content": "Be kind ."}, {"role": "user", "content": "Hi"}], "act": [2]},
            DialogueRecord(["Hi"], [2], meta={"system": "Be kind ."}, roles=["user"], system=[(0, "Be kind .")]),
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in TWO]}] * 2},
            DialogueRecord(["Hi Hey", "Hi Hey"], roles=["user", "user"]),
        ),
        ({"prompt": "Hi"}, DialogueRecord(["Hi"], is_prompt=True)),
        (
            {"prompt": TWO, "reference": "Yes", "references": ["No", "Yes"], "act": 3, "n": 1},
            DialogueRecord(TWO, [3], [["Yes", "No", "Yes"]], {"n": 1}, True),
        ),
        (
            {"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}], "reference": None},
            DialogueRecord(["Hi"], meta={"system": "S"}, is_prompt=True, roles=["user"], system=[(0, "S")]),
        ),
    ],
)
def test_forms_of_a_row(tmp_path, line, record):
    assert load(tmp_path, "a.jsonl", json.dumps(line)) == [record]
    (tmp_path / "a.parquet").write_bytes(parquet_bytes([line]))
    assert load_records(str(tmp_path / "a.parquet"), "train") == [record]


def test_one_row_an_utterance(tmp_path):
    text = "conversation_id,utterance,act\n7,Hi,question\n7,[laughs] Hey,1\nx,a,3.0\n"
    assert load(tmp_path, "a.csv", text) == [DialogueRecord(["Hi", "[laughs] Hey"], [2, 1]), DialogueRecord(["a"], [3])]
    rows = [{"dialog_id": 4, "dialog": text, "act_label": act} for text, act in zip(TWO, ("question", 1), strict=True)]
    assert load(tmp_path, "a.jsonl", jsonl_bytes(rows)) == [DialogueRecord(TWO, [2, 1])]


def test_acts_that_are_missing_everywhere_are_no_acts(tmp_path):
    assert load(tmp_path, "a.csv", "id,text,act\n1,Hi,\n1,Hey,\n") == [DialogueRecord(TWO)]
    assert load(tmp_path, "a.jsonl", '{"dialog": ["Hi", "Hey"], "act": [NaN, NaN]}') == [DialogueRecord(TWO)]


def row(*messages):
    return {"messages": [{"role": role, "content": text} for role, text in messages]}


def test_roles_and_system_messages_are_kept_with_their_places(tmp_path):
    messages = [("system", "S"), ("User", "a"), ("assistant", "b"), ("developer", "T"), ("user", "c")]
    utterances = [{"id": 1, "role": role, "text": text} for role, text in messages]
    for rows in ([row(*messages)], utterances):
        (record,) = load(tmp_path, "a.jsonl", jsonl_bytes(rows))
        assert (record.turns, record.roles) == (["a", "b", "c"], ["user", "assistant", "user"])
        assert (record.system, record.meta) == ([(0, "S"), (2, "T")], {"system": "S\nT"})
    tools = [{"id": 2, "role": role, "text": "a"} for role in ("user", "tool", "assistant")]
    assert load(tmp_path, "a.jsonl", jsonl_bytes(utterances + tools)) == [record]
    rows = [{"turns": [{"speaker": "USER", "utterance": "a"}, {"speaker": "SYSTEM", "utterance": "b"}]}]
    (record,) = load(tmp_path, "a.jsonl", jsonl_bytes(rows))
    assert (record.turns, record.roles, record.system) == (["a", "b"], ["user", "system"], [])


TALK = row(("user", "a"), ("assistant", "b"))
WITH_TOOLS = [
    row(("user", "a"), ("tool", "{}"), ("assistant", "b")),
    row(("tool", "{}"), ("user", "a"), ("assistant", "b")),
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]}]},
]


@pytest.mark.parametrize("row", WITH_TOOLS, ids=["answer", "beginning", "call"])
def test_rows_with_tool_messages_are_left_out_and_counted_in_one_line(tmp_path, caplog, row):
    assert len(load(tmp_path, "a.jsonl", jsonl_bytes([TALK, row, TALK, row]))) == 2
    (line,) = [line for line in caplog.messages if "tool messages" in line]
    assert line.startswith("2 of 4 rows have tool messages")
    assert line.endswith("a.jsonl, line 2")
    with pytest.raises(UserError, match=r"line 1: no row can be used.* tool messages"):
        load(tmp_path, "a.jsonl", jsonl_bytes([row]))
