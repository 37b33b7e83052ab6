"""Formats of feedback that are imported and exported: our own and TRL's."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.examples import AnswerPair, RatedAnswer
from rlhf_dialog.feedback.store.formats import native, trl
from rlhf_dialog.feedback.store.store import Rating, Store, TurnOrigin


@pytest.fixture
def rows(tmp_path):
    store = Store.create(tmp_path / "feedback.sqlite")
    dialogue = store.begin("ann", "terminal")
    store.add_turn(dialogue, 0, "user", "Is it far ?")
    first = store.add_turn(dialogue, 1, "agent", "Yes .", TurnOrigin([1], [-0.5], {"top_k": 0}, "0001"))
    second = store.add_turn(dialogue, 1, "agent", "Two streets .")
    store.add_feedback(dialogue, "ann", Rating("thumb", turn=first, value=1))
    store.add_feedback(dialogue, "ann", Rating("thumb", turn=first, value=-1, text="short"))
    store.add_feedback(dialogue, "bob", Rating("choice", turn=second, other=first))
    yield native.export_rows(store)
    store.close()


def read(rows):
    return native.read([(f"line {number}", row) for number, row in enumerate(rows, 1)]).records


def test_it_has_everything_and_reads_it(rows):
    (row,) = json.loads(json.dumps(rows))
    assert native.is_native(row)
    assert row["turns"][1]["token_ids"] == [1]
    (record,) = read([row])
    assert [(turn.position, turn.text) for turn in record.turns] == [
        (0, "Is it far ?"),
        (1, "Yes ."),
        (1, "Two streets ."),
    ]
    assert [(one.kind, one.turn, one.other, one.value, one.text) for one in record.judgements] == [
        ("thumb", 1, None, 1, None),
        ("thumb", 1, None, -1, "short"),
        ("choice", 2, 1, None, None),
    ]
    assert (record.id, record.bot) == (row["dialogue"]["id"], row["bot"])
    assert [one.created for one in record.judgements] == [one["created"] for one in row["feedback"]]


def changed(row, place, key, value):
    part = row if place is None else row[place] if place == "dialogue" else row[place][1]
    part[key] = value
    return row


@pytest.mark.parametrize(
    ("place", "key", "value", "words"),
    [
        (None, "format_version", 2, "format version 2.*update"),
        (None, "colour", 1, "the line has the unknown keys 'colour'; known are format"),
        ("turns", "colour", 1, "turns has the unknown keys 'colour'"),
        ("feedback", "kind", "praise", "is damaged"),
        ("feedback", "turn", 99, "is damaged"),
        ("feedback", "value", 7, "is damaged"),
        ("feedback", "person", "ann", "is damaged"),
        ("turns", "speaker", "system", "is damaged"),
        ("turns", "text", 7, "is damaged"),
        ("dialogue", "id", "../../x", "is damaged"),
        ("dialogue", "started", "yesterday", "is damaged"),
        (None, "turns", None, "is damaged"),
    ],
)
def test_a_damaged_line_is_named(rows, place, key, value, words):
    with pytest.raises(UserError, match=f"line 1: .*{words}"):
        read([changed(json.loads(json.dumps(rows[0])), place, key, value)])


def test_messages_and_texts():
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Is it far ? "},
        {"from": "gpt", "value": "Two streets ."},
        {"role": "human", "content": [{"type": "text", "text": "Which"}, {"type": "text", "text": "ones ?"}]},
    ]
    (record,) = trl_read([{"prompt": messages, "completion": "These .", "label": True}], "kto")
    assert [(turn.speaker, turn.text) for turn in record.turns] == [
        ("user", "Is it far ?"),
        ("agent", "Two streets ."),
        ("user", "Which ones ?"),
        ("agent", "These ."),
    ]


@pytest.mark.parametrize("wrong", [7, [{"role": "user"}], [{"role": "user", "content": 7}]])
def test_what_is_not_a_message(wrong):
    with pytest.raises(UserError, match=r"row 1: .*wanted"):
        trl_read([{"prompt": wrong, "completion": "b", "label": True}], "kto")


ASK = {"role": "user", "content": "Is it far ?"}
YES, STREETS = ({"role": "assistant", "content": text} for text in ("Yes .", "Two streets ."))
ABOUT = ("thumb", "p", "d", 1)


def turns(record):
    return [(turn.position, turn.speaker, turn.text) for turn in record.turns]


def trl_read(rows, form):
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
    (record,) = trl_read([row], "kto")
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
    (record,) = trl_read([row], "dpo")
    assert turns(record) == [(0, "user", "Is it far ?"), (1, "agent", "Two streets ."), (1, "agent", "Yes .")]
    (judgement,) = record.judgements
    assert (judgement.kind, judgement.turn, judgement.other) == ("choice", 1, 2)
    assert judgement.person == ("9" if "user_id" in row else None)


def test_the_prompt_that_two_texts_share():
    shared = "Human: Is it far to the old station ?\n\nAssistant:"
    (record,) = trl_read([{"chosen": f"{shared} Two streets .", "rejected": f"{shared} Yes ."}], "dpo")
    assert turns(record) == [(0, "user", shared), (1, "agent", "Two streets ."), (1, "agent", "Yes .")]
    (record,) = trl_read([{"chosen": "Yes . Two streets .", "rejected": "Yes . Far ."}], "dpo")
    assert turns(record) == [(0, "agent", "Yes . Two streets ."), (0, "agent", "Yes . Far .")]


@pytest.mark.parametrize(
    ("row", "form", "words"),
    [
        ({"prompt": "a", "completion": "b", "label": "maybe"}, "kto", r"'label' holds 'maybe', wanted true"),
        ({"prompt": "a", "completion": "b", "label": None}, "kto", "has no 'label'"),
        ({"prompt": "a", "completion": "  ", "label": True}, "kto", "wanted"),
        ({"prompt": "a", "completion": [ASK], "label": True}, "kto", "messages that end with one"),
        (
            {"prompt": "a", "completion": "b", "label": True, "lable": 3},
            "kto",
            "KTO format has no column 'lable'; did you mean 'label'.; known are prompt, .*--ignore lable",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "dpo", "are the same"),
        ({"chosen": [ASK, YES], "rejected": [{**ASK, "content": "Far ?"}, YES]}, "dpo", "answer different messages"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(row, form, words):
    fine = {"kto": {"prompt": "a", "completion": "b", "label": True}, "dpo": {"chosen": "b", "rejected": "c"}}[form]
    with pytest.raises(UserError, match=f"row 2: .*{words}"):
        trl_read([fine, row], form)


def test_what_is_not_read_of_messages_is_named_and_tools_and_images_are_left_out():
    system = {"role": "system", "content": "You guide guests ."}
    thoughtful = YES | {"reasoning_content": "They ask for the way ."}
    calls = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "map", "arguments": "{}"}}]}
    image = {"role": "user", "content": [{"type": "text", "text": "Here ?"}, {"type": "image", "image": "x"}]}
    rows = [
        {"prompt": [system, ASK], "completion": [thoughtful], "label": True},
        {"prompt": [ASK, calls, {"role": "tool", "content": "2"}], "completion": [YES], "label": True},
        {"prompt": [image], "completion": [YES], "label": True},
    ]
    found = trl.read([(f"row {number}", row) for number, row in enumerate(rows, 1)], "kto")
    assert [turns(one) for one in found.records] == [[(0, "user", "Is it far ?"), (1, "agent", "Yes .")]]
    assert found.unread == {"system message": 1, "reasoning_content of a turn": 1}
    assert [("tool" in reason or "image" in reason, count) for reason, count in found.left_out.items()] == [
        (True, 1)
    ] * 2


def test_a_prompt_that_a_completion_repeats_is_read_once():
    (record,) = trl_read([{"prompt": [ASK], "completion": [ASK, YES], "label": True}], "kto")
    assert turns(record) == [(0, "user", "Is it far ?"), (1, "agent", "Yes .")]


@pytest.mark.parametrize(
    ("form", "bad"),
    [
        ("kto", {"completion": " "}),
        ("kto", {"completion": None}),
        ("kto", {"completion": [{"role": "assistant", "content": ""}]}),
        ("kto", {"prompt": ""}),
        ("dpo", {"chosen": ""}),
        ("dpo", {"rejected": None}),
        ("dpo", {"rejected": "Two streets ."}),
    ],
    ids=str,
)
def test_a_few_rows_without_text_are_left_out_and_counted(form, bad):
    answer = {"kto": {"completion": "Yes .", "label": True}, "dpo": {"chosen": "Two streets .", "rejected": "Yes ."}}[
        form
    ]
    rows = [(f"row {number}", {"prompt": f"Question {number} ?", **answer}) for number in range(1, 11)]
    rows[6] = ("row 7", rows[6][1] | bad)
    found = trl.read(rows, form)
    assert (len(found.records), list(found.left_out.values())) == (9, [1])
    assert "row 7" in next(iter(found.left_out))
    with pytest.raises(UserError, match=r"(?s)1 of 9 rows cannot be used.*row 7"):
        trl.read(rows[:9], form)


def test_rows_of_an_export():
    answer = RatedAnswer(("Hello .", "Hi .", "Is it far ?"), "Yes .", False, *ABOUT)
    pair = AnswerPair(("Is it far ?",), "Two streets .", "Yes .", *ABOUT)
    before = [{"role": "user", "content": "Hello ."}, {"role": "assistant", "content": "Hi ."}, ASK]
    assert trl.export_rows([answer, pair], "kto") == [{"prompt": before, "completion": [YES], "label": False}]
    assert trl.export_rows([answer, pair], "dpo") == [{"prompt": [ASK], "chosen": [STREETS], "rejected": [YES]}]
    (record,) = trl_read(trl.export_rows([answer], "kto"), "kto")  # what is exported is read again
    said = ["Hello .", "Hi .", "Is it far ?", "Yes ."]
    assert turns(record) == [(i, ("user", "agent")[i % 2], text) for i, text in enumerate(said)]


def test_transcripts_system_messages_and_bad_rows_are_read_as_in_training():
    human = "\n\nHuman: Hello .\n\nAssistant: Hi .\n\nHuman: Is it far ?\n\nAssistant:"
    system = {"role": "system", "content": "Be brief."}
    rows = [{"prompt": [system, ASK], "chosen": f"{human} Yes .", "rejected": f"{human} No ."}]
    found = trl.read([("row 1", row) for row in rows], "dpo")
    assert [text for *_, text in turns(found.records[0])] == ["Hello .", "Hi .", "Is it far ?", "Yes .", "No ."]
    assert found.unread == {"system message": 1}
    fine = {"prompt": "a", "completion": "b", "label": True}
    found = trl.read(
        [(f"row {n}", row) for n, row in enumerate([fine] * 18 + [fine | {"completion": ""}, fine | {"prompt": None}])],
        "kto",
    )
    assert len(found.records) == 18
    assert list(found.left_out.values()) == [2]
