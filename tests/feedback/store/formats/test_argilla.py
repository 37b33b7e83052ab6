"""Argilla's records.

Written after argilla-io/argilla, argilla/src/argilla: records/_resource.py (Record.to_dict), records/_io/_json.py and
records/_io/_generic.py (the table's `QUESTION.responses`, `.users`, `.status`). The fields are those of settings/_templates.py
(for_ranking, for_rating) there, and of argilla-io/distilabel, src/distilabel/steps/argilla/preference.py (generation-0,
generation-0-rating). A ranking's value is a list of names (responses.py), or of names with ranks.
"""

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats import argilla

FIELDS = {"instruction": "Is it far ?", "response1": "Yes .", "response2": "Two streets ."}


def nested(responses, fields=None):
    return {
        **{"id": "r1", "fields": fields or FIELDS, "metadata": {"topic": "travel"}, "vectors": {}, "_server_id": "9a"},
        "suggestions": {"ranking": {"value": ["response1", "response2"], "score": 0.9, "agent": "gpt"}},
        "responses": {
            question: [{"value": value, "user_id": user} for value, user in given]
            for question, given in responses.items()
        },
    }


def read(*rows, ignored=()):
    return argilla.read([(f"row {number}", row) for number, row in enumerate(rows, 1)], ignored)


def said(record):
    """What each judgement says, with the texts that it is about."""
    texts = [turn.text for turn in record.turns]
    return [
        (one.kind, texts[one.turn], one.value if one.other is None else texts[one.other], one.person)
        for one in record.judgements
    ]


@pytest.mark.parametrize(
    ("question", "value"),
    [
        ("ranking", ["response2", "response1"]),
        ("ranking", [{"value": "response1", "rank": 2}, {"value": "response2", "rank": 1}]),
        ("preference", "response2"),
    ],
)
def test_a_ranking_or_a_label_is_a_choice(question, value):
    row = nested({question: [(value, "u1")]})
    assert argilla.is_records(row)
    (record,) = read(row).records
    assert [(turn.position, turn.speaker) for turn in record.turns] == [(0, "user"), (1, "agent"), (1, "agent")]
    assert said(record) == [("choice", "Two streets .", "Yes .", "u1")]
    assert record.group == "Is it far ?"


def test_two_people_and_three_answers():
    fields = {**FIELDS, "response3": "Far ."}
    order = ["response3", "response1", "response2"]
    tied = [{"value": name, "rank": rank} for name, rank in zip(order, (1, 2, 2), strict=True)]
    (record,) = read(nested({"ranking": [(order, "u1"), (tied, "u2")]}, fields)).records
    assert said(record) == [
        ("choice", "Far .", "Yes .", "u1"),
        ("choice", "Yes .", "Two streets .", "u1"),
        ("choice", "Far .", "Yes .", "u2"),
    ]


def test_ratings_are_scores():
    (record,) = read(nested({"rating": [(5, "u1")]}, {"instruction": "Is it far ?", "response": "Yes ."})).records
    assert said(record) == [("score", "Yes .", 5, "u1")]
    fields = {"id": "77", "instruction": "Is it far ?", "generation-0": "Yes .", "generation-1": "Far ."}
    given = {
        "generation-0-rating": [(2, "u1")],
        "generation-1-rating": [(4, "u1")],
        "generation-1-rationale": [("x", "u1")],
    }
    found = read(nested(given, fields))
    assert said(found.records[0]) == [("score", "Yes .", 2, "u1"), ("score", "Far .", 4, "u1")]
    assert [reason.split(",")[0] for reason in found.left_out] == ["answers to the question 'generation-1-rationale'"]


def test_a_table_of_records():
    row = {
        **{"id": "r1", "status": "completed", "_server_id": "9a", **FIELDS},
        **{"ranking.responses": [["response2", "response1"], ["response1", "response2"]]},
        **{"ranking.responses.users": ["u1", "u2"], "ranking.responses.status": ["submitted", "discarded"]},
        **{"ranking.suggestion": ["response1", "response2"], "ranking.suggestion.score": 0.9},
        **{"ranking.suggestion.agent": "gpt"},
    }
    assert argilla.is_records(row)
    found = read(row)
    assert said(found.records[0]) == [("choice", "Two streets .", "Yes .", "u1")]
    assert found.left_out == {"responses that were not submitted": 1}


FLAT = {"prompt": "Is it far ?", "response_1": "Yes .", "response_2": "Two streets ."}


@pytest.mark.parametrize(
    "row",
    [
        nested({}) | {"responses": [{"user_id": "u1", "status": "submitted", "values": {"ranking": {"value": "x"}}}]},
        *(nested({}) | {"responses": wrong} for wrong in ("x", {"ranking": ["x"]}, {"ranking": [None]})),
        nested({}) | {"fields": ["x"]},
        FLAT | {"ranking.responses": ["response_1", "response_2"], "ranking.responses.users": ["u1"]},
    ],
)
def test_what_argilla_2_does_not_write_is_one_message(row):
    with pytest.raises(UserError, match="row 1: its fields or responses are not those of a record of Argilla 2"):
        read(row)


@pytest.mark.parametrize("ranks", [[None, "2"], [1, "x"], [1, [2]]])
def test_ranks_that_are_no_numbers_are_left_out(ranks):
    value = [{"value": name, "rank": rank} for name, rank in zip(("response1", "response2"), ranks, strict=True)]
    found = read(nested({"ranking": [(value, "u1"), (["response1", "response2"], "u2")]}))
    assert (len(found.records[0].judgements), sum(found.left_out.values())) == (1, 1)


def test_suggestions_of_models_are_not_feedback():
    row, judged = nested({}), nested({"preference": [("response1", "u1")]})
    found = read(row, judged)
    assert len(found.records) == 1
    assert found.left_out == {"records without a choice or a rating of a person": 1}
    with pytest.raises(UserError, match=r"nothing to learn from in these records \(records without a choice"):
        read(row)


def test_fields_and_columns_that_are_not_known():
    with pytest.raises(
        UserError, match=r"row 1: the fields 'weather' are not known; known as the prompt .*--ignore weather"
    ):
        read(nested({"preference": [("response1", "u1")]}, {**FIELDS, "weather": "rain"}))
    judged = nested({"preference": [("response1", "u1")]}, {**FIELDS, "weather": "rain"})
    assert len(read(judged, ignored=("weather",)).records) == 1
    with pytest.raises(UserError, match="a record of Argilla has no column 'colour'"):
        read({**nested({}), "colour": 1})
