"""Gradio's flagged CSV.

The files are written as gradio-app/gradio writes them: gradio/flagging.py, ChatCSVLogger.flag (a header of five columns over rows
of four cells) and CSVLogger.flag (labels, then `flag` and `username` where there are any, then `timestamp`), with the apostrophes
of sanitize_value_for_csv in gradio/utils.py.
"""

import csv
import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats import gradio

CHAT = ["conversation", "index", "value", "flag", "timestamp"]
TIME = "2026-11-22 05:46:47.548111"
TALK = [
    {"role": "user", "content": "Is it far ?", "metadata": None, "options": None},
    {"role": "assistant", "content": [{"type": "text", "text": "Two streets ."}], "metadata": None, "options": None},
    {"role": "user", "content": [{"type": "text", "text": "Which ones ?"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "The next two ."}]},
]


@pytest.fixture
def written(tmp_path):
    def write(*lines):
        path = tmp_path / "log.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(lines)
        return path

    return write


def summary(record):
    (judgement,) = record.judgements
    return [(turn.speaker, turn.text) for turn in record.turns], judgement.turn, judgement.value


def test_likes_of_a_chat(written):
    path = written(
        CHAT,
        [json.dumps(TALK), 1, "Like", TIME],
        [json.dumps(TALK), 3, "Dislike", TIME],
        [json.dumps([["Is it far ?", "Yes ."], ["Which way ?", "Left ."]]), json.dumps([1, 1]), "Dislike", TIME],
        [json.dumps(TALK), 3, "Spam", TIME],
        [
            json.dumps([{"role": "user", "content": [{"type": "file", "file": {"path": "x"}}]}, TALK[1]]),
            1,
            "Like",
            TIME,
        ],
        [json.dumps(TALK), 2, "Like", TIME],
    )
    assert gradio.is_log(gradio.columns_of(path))
    found = gradio.read(path)
    said = [("user", "Is it far ?"), ("agent", "Two streets ."), ("user", "Which ones ?"), ("agent", "The next two .")]
    old = [("user", "Is it far ?"), ("agent", "Yes ."), ("user", "Which way ?"), ("agent", "Left .")]
    assert [summary(record) for record in found.records] == [(said[:2], 1, 1), (said, 3, -1), (old, 3, -1)]
    assert found.left_out == {
        "rows with the flag 'Spam', which is neither like nor dislike": 1,
        "rows whose flagged message is not a text of the bot, after texts": 2,
    }
    assert found.records[0].judgements[0].created == pytest.approx(1795326407.548111, abs=86400)  # in any time zone
    assert {record.group for record in found.records} == {"Is it far ?"}


def test_the_index_counts_a_system_message(written):
    found = gradio.read(
        written(CHAT, [json.dumps([{"role": "system", "content": "Be kind ."}, *TALK]), 4, "Like", TIME])
    )
    assert [summary(record)[1:] for record in found.records] == [(3, 1)]
    assert found.records[0].turns[0].text == "Is it far ?"


def test_flags_of_an_interface_with_people(written):
    path = written(
        ["message", "output", "flag", "username", "timestamp"],
        ["'- is it far,", "Two streets .", "Good", "ann", TIME],
        ["Is it far ?", "'=1", "'-1", "", TIME],
        ["'tis far", "Yes .", "Bad", "bob", TIME],
    )
    found = gradio.read(path)
    assert [summary(record) for record in found.records] == [
        ([("user", "- is it far,"), ("agent", "Two streets .")], 1, 1),
        ([("user", "Is it far ?"), ("agent", "=1")], 1, -1),
        ([("user", "'tis far"), ("agent", "Yes .")], 1, -1),
    ]
    assert [record.judgements[0].person for record in found.records] == ["ann", None, "bob"]


def test_a_flagged_chatbot(written):
    found = gradio.read(written(["Chatbot", "flag", "timestamp"], [json.dumps(TALK), "Good", TIME]))
    assert [summary(record)[1:] for record in found.records] == [(3, 1)]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            [["a", "b", "c", "flag", "timestamp"], ["x", "y", "z", "Good", TIME]],
            r"'a', 'b', 'c'.*known are flag.*--ignore",
        ),
        ([["a", "b", "timestamp"], ["x", "y", TIME]], "known are flag, username, timestamp"),
        ([["a", "b", "flag", "timestamp"], ["x", "y", "", TIME]], r"nothing to learn from .*known flags are like"),
        ([["a", "b", "flag", "timestamp"], ["x", "y", TIME]], "line 2: has 3 cells, but the first line names 4"),
        ([CHAT, ["no JSON", 1, "Like", TIME]], "line 2: found 'no JSON', wanted JSON"),
        ([CHAT, ["[1, 2]", 1, "Like", TIME]], "wanted a list of messages"),
        ([CHAT, [json.dumps(TALK), 4, "Like", TIME]], "the index '4' is not one of the 4 messages"),
        ([CHAT, [json.dumps(TALK), "Like", TIME]], "has 3 cells, wanted the conversation"),
    ],
)
def test_what_is_not_such_a_log(written, lines, words):
    with pytest.raises(UserError, match=words) as caught:
        gradio.read(written(*lines))
    assert "\n" not in str(caught.value)


def test_columns_can_be_left_out(written):
    path = written(["message", "temperature", "output", "flag", "timestamp"], ["x", "0.7", "y", "Good", TIME])
    assert [summary(record)[2] for record in gradio.read(path, ("temperature",)).records] == [1]
