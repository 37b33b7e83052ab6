"""The forms of a row, and what is said of rows that are none of them."""

import json

import pytest

from rlhf_dialog.data.sources import DialogueRecord, load_records
from rlhf_dialog.errors import UserError
from tests.parts.data_files import TWO, load, parquet_bytes


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


ERRORS = [
    ("a.csv", "dialog\n\"['a', 'b']\"\nhello\n", ["a.csv, line 3", "'dialog' holds text"]),
    ("a.csv", "dialogs,y\na,b\n", ["a.csv, line 2", "'dialogs', 'y'", "did you mean 'dialog'"]),
    ("a.csv", "id,text\n1,a\n2,b\n1,c\n", ["a.csv, line 4", "dialogue '1' continues"]),
    ("a.csv", "id,text\n1,a\n,b\n", ["a.csv, line 3", "dialogue id holds null"]),
    ("a.csv", "id,text\n1,a\n1,\n", ["a.csv, line 3", "'text' holds null"]),
    ("a.jsonl", '{"dialog": ["a", "b"], "references": [["c"]]}', ["'references' holds 1 items", "2 turns"]),
    ("a.jsonl", '{"dialog": ["a", "b"], "references": [["c"], [1]]}', ["'references' of turn 2 holds a number"]),
    ("a.jsonl", '{"prompt": 7}', ["'prompt' holds a number"]),
    ("a.jsonl", '{"prompt": "a"}\n{"prompt": "b", "act": [1]}', ["line 2: 'act' is [1]"]),
    ("a.jsonl", '{"prompt": "a", "reference": " "}', ["line 1: 'reference' is empty"]),
    ("a.jsonl", '{"dialog": ["a", "b"], "act": 1}', ["line 1", "one act per row", "a list with one act per turn"]),
    ("a.parquet", parquet_bytes([{"text": "a"}]), ["a.parquet, row 1: no turns", "'text'"]),
]


@pytest.mark.parametrize(("name", "content", "words"), ERRORS, ids=range(len(ERRORS)))
def test_errors_say_where_and_what(tmp_path, name, content, words):
    with pytest.raises(UserError) as caught:
        load(tmp_path, name, content)
    for word in words:
        assert word in str(caught.value)
