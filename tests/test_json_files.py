"""The JSON files of this program: what is read is what was written, and a damaged one is one sentence."""

import re

import pytest
from pydantic import BaseModel

from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import as_read_again, damage_as_user_error, json_or, load_json, parse_json, read_json

DEEP = "[" * 100_000


class Count(BaseModel):
    count: int


def test_what_was_written_is_read(tmp_path):
    write_json(tmp_path / "a.json", {"name": "Zoé", "of": [1, None, 0.5]})
    assert read_json(tmp_path / "a.json") == {"name": "Zoé", "of": [1, None, 0.5]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"", "Expecting value: line 1 column 1"),
        (b'{"count": 3', "Expecting ',' delimiter"),
        (b"\xff", "can't decode byte 0xff"),
        (DEEP.encode(), "is nested too deeply"),
        (b"1" * 5000, "Exceeds the limit"),
        (b"[]", "the file: Input should be"),
        (b"{}", "count: Field required"),
        (b'{"count": "3"}', "count: Input should be a valid integer"),
    ],
)
def test_damage_is_one_sentence_with_the_file_the_fault_and_what_to_do(tmp_path, content, said):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^{re.escape(str(path))}: is damaged: .*{said}.*; make it again$") as raised:
        read_json(path, end="; make it again", shape=Count)
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match=rf"^key: cannot be read \(.*{said}"):
        read_json(path, "key: cannot be read (", shape=Count)
    assert json_or(path, {"count": 0}, Count) == {"count": 0}
    with pytest.raises(
        (OSError, ValueError), match=said if content not in (b"[]", b"{}", b'{"count": "3"}') else "Count"
    ):
        load_json(path, Count)


def test_parts_that_the_shape_does_not_name_are_kept():
    assert parse_json('{"count": 3, "more": [1]}', Count) == {"count": 3, "more": [1]}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: {}["format_version"], "KeyError: 'format_version'"),
        (lambda: [].keys(), "'list' object has no attribute 'keys'"),
        (lambda: [] > 1, "'>' not supported between instances of 'list' and 'int'"),
    ],
)
def test_what_its_readers_raise_is_a_sentence_too(wrong, said):
    with pytest.raises(UserError) as raised, damage_as_user_error("x: is damaged (", ")"):
        wrong()
    assert str(raised.value) == f"x: is damaged ({said})"


def test_a_message_of_its_own_passes():
    with pytest.raises(UserError, match=r"^its own$"), damage_as_user_error("x: is damaged: "):
        raise UserError("its own")


def test_a_tree_as_it_is_read_again():
    assert as_read_again({1: (2, float)}) == {"1": [2, "<class 'float'>"]}
