"""TRL's KTO and DPO columns.

The columns are those of TRL's documentation of data set formats (huggingface/trl, docs/source/dataset_formats.md): "unpaired
preference" and "preference", each as text ("standard") and as messages ("conversational"), with or without an explicit prompt.
"""

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.examples import AnswerPair, Examples, RatedAnswer
from rlhf_dialog.feedback.store.formats import trl

ASK = {"role": "user", "content": "Is it far ?"}
YES, STREETS = ({"role": "assistant", "content": text} for text in ("Yes .", "Two streets ."))
ABOUT = ("thumb", "p", "d", 1)


def turns(record):
    return [(turn.position, turn.speaker, turn.text) for turn in record.turns]


def read(rows, form):
    return trl.read([(f"row {number}", row) for number, row in enumerate(rows, 1)], form).records


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Is it far ?", "completion": "Yes .", "label": False},
        {"prompt": [ASK], "completion": [YES], "label": False},
        {"prompt": "Is it far ?", "completion": " Yes .", "label": 0, "id": 7},
    ],
)
def test_kto(row):
    (record,) = read([row], "kto")
    assert turns(record) == [(0, "user", "Is it far ?"), (1, "agent", "Yes .")]
    (judgement,) = record.judgements
    assert (judgement.kind, judgement.turn, judgement.value, judgement.person) == ("thumb", 1, -1, None)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Is it far ?", "chosen": "Two streets .", "rejected": "Yes ."},
        {"prompt": [ASK], "chosen": [STREETS], "rejected": [YES], "user_id": 9},
        {"chosen": [ASK, STREETS], "rejected": [ASK, YES], "score_chosen": 8.0, "score_rejected": 5.0},
        {"prompt": "Is it far ?", "chosen": [ASK, STREETS], "rejected": [ASK, YES]},
    ],
)
def test_dpo(row):
    (record,) = read([row], "dpo")
    assert turns(record) == [(0, "user", "Is it far ?"), (1, "agent", "Two streets ."), (1, "agent", "Yes .")]
    (judgement,) = record.judgements
    assert (judgement.kind, judgement.turn, judgement.other) == ("choice", 1, 2)
    assert judgement.person == ("9" if "user_id" in row else None)


def test_the_prompt_that_two_texts_share():
    shared = "Human: Is it far to the old station ?\n\nAssistant:"
    (record,) = read([{"chosen": f"{shared} Two streets .", "rejected": f"{shared} Yes ."}], "dpo")
    assert turns(record) == [(0, "user", shared), (1, "agent", "Two streets ."), (1, "agent", "Yes .")]
    (record,) = read([{"chosen": "Yes . Two streets .", "rejected": "Yes . Far ."}], "dpo")
    assert turns(record) == [(0, "agent", "Yes . Two streets ."), (0, "agent", "Yes . Far .")]


@pytest.mark.parametrize(
    ("row", "form", "words"),
    [
        ({"prompt": "a", "completion": "b", "label": "maybe"}, "kto", r"'label' holds 'maybe', wanted true"),
        ({"prompt": "a", "completion": "b", "label": None}, "kto", "has no 'label'"),
        ({"prompt": "a", "completion": "  ", "label": True}, "kto", "wanted"),
        ({"prompt": "a", "completion": [ASK], "label": True}, "kto", "messages that end with one"),
        ({"prompt": "a", "completion": "b", "label": True, "rating": 3}, "kto", "KTO format has no column 'rating'"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "dpo", "are the same"),
        ({"chosen": [ASK, YES], "rejected": [{**ASK, "content": "Far ?"}, YES]}, "dpo", "answer different messages"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(row, form, words):
    fine = {"kto": {"prompt": "a", "completion": "b", "label": True}, "dpo": {"chosen": "b", "rejected": "c"}}[form]
    with pytest.raises(UserError, match=f"row 2: .*{words}"):
        read([fine, row], form)


def test_rows_of_an_export():
    answer = RatedAnswer(("Hello .", "Hi .", "Is it far ?"), "Yes .", False, *ABOUT)
    pair = AnswerPair(("Is it far ?",), "Two streets .", "Yes .", *ABOUT)
    examples = Examples([answer], [pair])
    assert trl.export_rows(examples, "kto", False) == [
        {"prompt": "Hello .\nHi .\nIs it far ?", "completion": "Yes .", "label": False}
    ]
    assert trl.export_rows(examples, "kto", True)[0]["prompt"] == [
        {"role": "user", "content": "Hello ."},
        {"role": "assistant", "content": "Hi ."},
        ASK,
    ]
    assert trl.export_rows(examples, "dpo", False) == [
        {"prompt": "Is it far ?", "chosen": "Two streets .", "rejected": "Yes ."}
    ]
    assert trl.export_rows(examples, "dpo", True) == [{"prompt": [ASK], "chosen": [STREETS], "rejected": [YES]}]


def test_what_is_exported_is_read_again():
    examples = Examples([RatedAnswer(("Hello .", "Hi .", "Is it far ?"), "Yes .", True, *ABOUT)], [])
    (record,) = read(trl.export_rows(examples, "kto", True), "kto")
    assert [text for *_, text in turns(record)] == ["Hello .", "Hi .", "Is it far ?", "Yes ."]
    assert [speaker for _, speaker, _ in turns(record)] == ["user", "agent", "user", "agent"]
