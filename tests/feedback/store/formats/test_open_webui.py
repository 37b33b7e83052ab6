"""Open WebUI's feedback export.

The fields of a row are those of FeedbackModel and its forms in open-webui/open-webui, backend/open_webui/models/feedbacks.py
(the export is backend/open_webui/routers/evaluations.py, `/feedbacks/all/export`); what the page puts into data, meta and
snapshot is `feedbackHandler` of src/lib/components/chat/Messages/ResponseMessage.svelte, and the tree of messages with parents
is read as `createMessagesList` of src/lib/utils/index.ts reads it.
"""

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats import open_webui


def message(name, parent, role, content, **more):
    return {"id": name, "parentId": parent, "childrenIds": [], "role": role, "content": content, "timestamp": 1, **more}


MESSAGES = {
    one["id"]: one
    for one in (
        message("m1", None, "user", "Is it far ?"),
        message("m2", "m1", "assistant", "Yes .", model="small:latest", done=True, annotation={"rating": -1}),
        message("m3", "m1", "assistant", "Two streets .", model="large:latest", done=True),
        message("m4", "m3", "user", "Which ones ?"),
        message("m5", "m4", "assistant", "The next two ."),
    )
}


def row(rated="m5", rating=1, **changes):
    """What the page sends for a thumb on one message, as the export gives it."""
    chat = {"title": "Far", "models": ["small:latest"], "params": {}, "files": []}
    chat |= {"history": {"messages": MESSAGES, "currentId": "m5"}, "messages": [], "tags": [], "timestamp": 1}
    found = {
        "id": "5b1c",
        "user_id": "8d0f-11",
        "version": 0,
        "type": "rating",
        "data": {
            **{"rating": rating, "model_id": "small:latest", "sibling_model_ids": ["large:latest"], "tags": ["travel"]},
            **{"reason": "thorough_explanation", "comment": "kind", "details": {"rating": 9}},
        },
        "meta": {
            **{"arena": False, "chat_id": "c1", "message_id": rated, "message_index": 4, "model_id": "small:latest"},
            **{"tags": ["travel"], "base_models": {"small:latest": None}},
        },
        "snapshot": {"chat": {"id": "c1", "user_id": "8d0f-11", "title": "Far", "chat": chat, "archived": False}},
        "created_at": 1700000000,
        "updated_at": 1700000100,
    }
    return found | changes


def read(*rows):
    return open_webui.read([(f"row {number}", one) for number, one in enumerate(rows, 1)])


def test_a_rating_is_a_thumb_on_its_message_after_its_parents():
    (record,) = read(row()).records
    assert [(turn.position, turn.speaker, turn.text) for turn in record.turns] == [
        *((0, "user", "Is it far ?"), (1, "agent", "Two streets .")),
        *((2, "user", "Which ones ?"), (3, "agent", "The next two .")),
    ]
    (judgement,) = record.judgements
    assert (judgement.kind, judgement.turn, judgement.value) == ("thumb", 3, 1)
    assert (judgement.text, judgement.person) == ("thorough_explanation: kind", "8d0f-11")
    assert (judgement.created, record.group) == (1700000100, "c1")


def test_another_branch_and_a_rating_that_is_text():
    (record,) = read(row("m2", "-1", data={"rating": "-1"})).records
    assert [turn.text for turn in record.turns] == ["Is it far ?", "Yes ."]
    assert (record.judgements[0].value, record.judgements[0].text) == (-1, None)


def test_thoughts_are_no_part_of_an_answer_and_a_rating_may_be_a_fraction():
    """As removeDetails of src/lib/utils/index.ts leaves them out of what is sent to a model."""
    thought = '<details type="reasoning" done="true" duration="3">\n<summary>Thought</summary>\n> Hm\n</details>\n'
    messages = MESSAGES | {
        "m3": message("m3", "m1", "assistant", f"{thought}Two streets ."),
        "m5": message("m5", "m4", "assistant", f"{thought}The next two ."),
        "m6": message("m6", "m4", "assistant", thought),
    }
    snapshot = {"chat": {"chat": {"history": {"messages": messages}}}}
    found = read(row(rating=1.0, snapshot=snapshot), row("m6", snapshot=snapshot))
    said = [turn.text for turn in found.records[0].turns]
    assert said == ["Is it far ?", "Two streets .", "Which ones ?", "The next two ."]
    assert found.left_out == {"ratings without the text of their chat": 1}


def test_the_older_rating_comes_first():
    found = read(row(rating=-1, updated_at=20), row(rating=1, updated_at=10))
    assert [record.judgements[0].value for record in found.records] == [1, -1]


def test_what_cannot_be_used_is_counted():
    circle = {"m1": message("m1", "m2", "user", "a"), "m2": message("m2", "m1", "assistant", "b")}
    snapshot = {"chat": {"chat": {"history": {"messages": circle}}}}
    found = read(
        row(data=None),
        row(data={"rating": None}),
        row(type="arena"),
        row(snapshot=None),
        row(meta={"message_id": "m9"}),
        row("m2", snapshot=snapshot),
        row("m4"),
    )
    assert found.records == []
    assert found.left_out == {
        "feedback without a rating": 3,
        "ratings without the text of their chat": 3,
        "ratings of a message of the user": 1,
    }


def test_an_unknown_column():
    assert open_webui.is_export(row())
    with pytest.raises(
        UserError, match=r"row 1: Open WebUI's feedback export has no column 'flavour'; known are id, user_id"
    ):
        read(row(flavour=1))
