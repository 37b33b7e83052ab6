"""Messages and columns of other programs."""

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats.record import Judgement, check_columns, make_record, message_text, read_messages


def test_judgements_count_the_answers():
    prompt = [("user", "Hello ."), ("agent", "Hi ."), ("user", "Is it far ?")]
    judgement = Judgement("choice", 1, other=0, person="7", created=5.0)
    record = make_record(prompt, ["Yes .", "Two streets ."], [judgement], group="g", where="row 1")
    assert [(turn.position, turn.speaker, turn.text) for turn in record.turns] == [
        *((number, *said) for number, said in enumerate(prompt)),
        (3, "agent", "Yes ."),
        (3, "agent", "Two streets ."),
    ]
    (found,) = record.judgements
    assert (found.turn, found.other, found.person, found.created, record.person) == (4, 3, "7", 5.0, "7")


def test_messages_and_texts():
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Is it far ? "},
        {"from": "gpt", "value": "Two streets ."},
        {"role": "human", "content": [{"type": "text", "text": "Which"}, {"type": "text", "text": "ones ?"}]},
    ]
    assert read_messages(messages, "row 1") == [
        ("user", "Is it far ?"),
        ("agent", "Two streets ."),
        ("user", "Which ones ?"),
    ]
    assert read_messages("Is it far ?", "row 1") == [("user", "Is it far ?")]
    assert message_text({"role": "user", "content": [{"type": "image"}]}) is None
    assert message_text("  ") is None


@pytest.mark.parametrize(
    "wrong", [7, [{"role": "user"}], [{"content": "who says it ?"}], [{"role": "user", "content": 7}]]
)
def test_what_is_not_a_message(wrong):
    with pytest.raises(UserError, match=r"row 3: found .*, wanted"):
        read_messages(wrong, "row 3")


def test_unknown_columns_are_named_with_what_is_known():
    check_columns(["a", "b"], ("a", "b", "c"), "X", "row 1")
    with pytest.raises(UserError) as caught:
        check_columns(["prompt", "lable", "extra"], ("prompt", "label"), "TRL's KTO format", "f.jsonl, line 1")
    assert str(caught.value) == (
        "f.jsonl, line 1: TRL's KTO format has no column 'lable', 'extra'; did you mean 'label'?; known are prompt, label; "
        "leave others out with --ignore lable,extra"
    )
