"""Messages with roles: which are turns, and which are refused."""

import pytest

from rlhf_dialog.errors import UserError
from tests.parts.data_files import jsonl_bytes, load


def row(*messages):
    return {"messages": [{"role": role, "content": text} for role, text in messages]}


def test_roles_and_system_messages_are_kept_with_their_places(tmp_path):
    messages = [("system", "S"), ("User", "a"), ("assistant", "b"), ("developer", "T"), ("user", "c")]
    (record,) = load(tmp_path, "a.jsonl", jsonl_bytes([row(*messages)]))
    assert (record.turns, record.roles) == (["a", "b", "c"], ["user", "assistant", "user"])
    assert (record.system, record.meta) == ([(0, "S"), (2, "T")], {"system": "S\nT"})


def test_the_speaker_named_system_speaks(tmp_path):
    rows = [{"turns": [{"speaker": "USER", "utterance": "a"}, {"speaker": "SYSTEM", "utterance": "b"}]}]
    (record,) = load(tmp_path, "a.jsonl", jsonl_bytes(rows))
    assert (record.turns, record.roles, record.system) == (["a", "b"], ["user", "system"], [])


def test_utterances_have_roles_and_system_messages_too(tmp_path):
    rows = [
        {"id": 1, "role": role, "text": text} for role, text in [("system", "S"), ("user", "a"), ("assistant", "b")]
    ]
    (record,) = load(tmp_path, "a.jsonl", jsonl_bytes(rows))
    assert (record.turns, record.roles, record.system) == (["a", "b"], ["user", "assistant"], [(0, "S")])


TALK = row(("user", "a"), ("assistant", "b"))
WITH_TOOLS = [
    row(("user", "a"), ("tool", "{}"), ("assistant", "b")),
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]}]},
]


@pytest.mark.parametrize("row", WITH_TOOLS, ids=["answer", "call"])
def test_rows_with_tool_messages_are_left_out_and_counted_in_one_line(tmp_path, caplog, row):
    assert len(load(tmp_path, "a.jsonl", jsonl_bytes([TALK, row, TALK, row]))) == 2
    assert [r.getMessage() for r in caplog.records if "tool messages" in r.getMessage()] == [
        f"2 of 4 rows have tool messages and are left out; the first: {tmp_path / 'a.jsonl'}, line 2"
    ]


def test_dialogues_of_utterances_with_tool_messages_are_left_out(tmp_path, caplog):
    said = [(1, "user"), (1, "assistant"), (2, "user"), (2, "tool"), (2, "assistant")]
    rows = [{"id": number, "role": role, "text": "a"} for number, role in said]
    assert len(load(tmp_path, "a.jsonl", jsonl_bytes(rows))) == 1
    assert "1 of 2 dialogues have tool messages" in caplog.text


def test_data_of_tool_messages_alone_is_refused(tmp_path):
    with pytest.raises(UserError, match="line 1: this row and all others have tool messages"):
        load(tmp_path, "a.jsonl", jsonl_bytes(WITH_TOOLS))


ERRORS = [
    ("a.jsonl", '{"messages": [{"content": [{"type": "image_url"}]}]}', ["turn 1", "image_url", "'type': 'text'"]),
    ("a.jsonl", '{"messages": [{"role": "system", "content": null}]}', ["system message 1 holds null"]),
    ("a.jsonl", '{"messages": [{"role": "system", "content": "a"}]}', ["the dialogue has no turns"]),
]


@pytest.mark.parametrize(("name", "content", "words"), ERRORS, ids=range(len(ERRORS)))
def test_errors_say_where_and_what(tmp_path, name, content, words):
    with pytest.raises(UserError) as caught:
        load(tmp_path, name, content)
    for word in words:
        assert word in str(caught.value)
