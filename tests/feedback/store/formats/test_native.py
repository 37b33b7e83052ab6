"""Formats of feedback that are imported and exported: our own, TRL's, Open WebUI's."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.examples import AnswerPair, Examples, RatedAnswer
from rlhf_dialog.feedback.store.formats import native, open_webui, trl
from rlhf_dialog.feedback.store.formats.record import Judgement, check_columns, make_record, message_text
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
    (record,) = trl_read([{"prompt": messages, "completion": "These .", "label": True}], "kto")
    assert [(turn.speaker, turn.text) for turn in record.turns] == [
        ("user", "Is it far ?"),
        ("agent", "Two streets ."),
        ("user", "Which ones ?"),
        ("agent", "These ."),
    ]
    assert message_text({"role": "user", "content": [{"type": "image"}]}) is None
    assert message_text("  ") is None


@pytest.mark.parametrize("wrong", [7, [{"role": "user"}], [{"role": "user", "content": 7}]])
def test_what_is_not_a_message(wrong):
    with pytest.raises(UserError, match=r"row 1: .*wanted"):
        trl_read([{"prompt": wrong, "completion": "b", "label": True}], "kto")


def test_unknown_columns_are_named_with_what_is_known():
    check_columns(["a", "b"], ("a", "b", "c"), "X", "row 1")
    with pytest.raises(UserError) as caught:
        check_columns(["prompt", "lable", "extra"], ("prompt", "label"), "TRL's KTO format", "f.jsonl, line 1")
    assert str(caught.value) == (
        "f.jsonl, line 1: TRL's KTO format has no column 'lable', 'extra'; did you mean 'label'?; known are prompt, label; "
        "leave others out with --ignore lable,extra"
    )


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


def open_webui_read(*rows):
    return open_webui.read([(f"row {number}", one) for number, one in enumerate(rows, 1)])


def test_a_rating_is_a_thumb_on_its_message_after_its_parents():
    (record,) = open_webui_read(row()).records
    assert [(turn.position, turn.speaker, turn.text) for turn in record.turns] == [
        *((0, "user", "Is it far ?"), (1, "agent", "Two streets .")),
        *((2, "user", "Which ones ?"), (3, "agent", "The next two .")),
    ]
    (judgement,) = record.judgements
    assert (judgement.kind, judgement.turn, judgement.value) == ("thumb", 3, 1)
    assert (judgement.text, judgement.person) == ("thorough_explanation: kind", "8d0f-11")
    assert (judgement.created, record.group) == (1700000100, "c1")


def test_another_branch_and_a_rating_that_is_text():
    (record,) = open_webui_read(row("m2", "-1", data={"rating": "-1"})).records
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
    found = open_webui_read(row(rating=1.0, snapshot=snapshot), row("m6", snapshot=snapshot))
    said = [turn.text for turn in found.records[0].turns]
    assert said == ["Is it far ?", "Two streets .", "Which ones ?", "The next two ."]
    assert found.left_out == {"ratings without the text of their chat": 1}


def test_the_older_rating_comes_first():
    found = open_webui_read(row(rating=-1, updated_at=20), row(rating=1, updated_at=10))
    assert [record.judgements[0].value for record in found.records] == [1, -1]


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (
            'Let me look .\n<details type="tool_calls" result="3 &gt; 2">\n<summary>x</summary>\n</details>\nIt rains .',
            "Let me look .\n\nIt rains .",
        ),
        ('<details type="code_interpreter" output="a > b">\n```python\nprint(1)\n```\n</details>One .', "One ."),
        ("<details done='true' type='reasoning'>Hm > hm</details>Yes .", "Yes ."),
        ('<details type="reasoning">a<details><summary>b</summary>c</details>d</details> Yes .', "Yes ."),
        ('Yes .<DETAILS type="tool_calls">one</DETAILS><details type="reasoning">never ended', "Yes ."),
        (
            "Three <details><summary>Why</summary>Because .</details>",
            "Three <details><summary>Why</summary>Because .</details>",
        ),
        ("<think>Far ?</think>\n\nYes .", "Yes ."),
        ("They ask for the way .</think>Yes .", "Yes ."),
        ("<think>They ask", None),
        ('<details type="reasoning" done="true">Hm</details>', None),
    ],
)
def test_only_what_a_person_was_answered_is_a_reply(content, shown):
    messages = MESSAGES | {"m5": message("m5", "m4", "assistant", content)}
    found = open_webui_read(row(snapshot={"chat": {"chat": {"history": {"messages": messages}}}}))
    if shown is None:
        assert found.left_out == {"ratings without the text of their chat": 1}
    else:
        assert [one.turns[-1].text for one in found.records] == [shown]
        blocks = {name for name in found.unread if name.startswith("blocks of ")}
        assert bool(blocks) == ("<details type" in content.lower() or "type='reasoning'" in content)


def with_message(name, **changes):
    """A rating of the last message of a chat in which one message has these keys."""
    messages = MESSAGES | {name: MESSAGES[name] | changes}
    return row(snapshot={"chat": {"chat": {"history": {"messages": messages}}}})


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("m1", {"files": [{"type": "image", "url": "data:image/png;base64,xx"}]}, "images or files"),
        ("m4", {"files": [{"type": "file", "name": "map.pdf"}]}, "images or files"),
        ("m5", {"files": [{"type": "image", "url": "/api/v1/files/1"}]}, "images or files"),
        ("m5", {"content": "Here : ![map](/api/v1/files/1/content)"}, "images or files"),
        ("m4", {"content": [{"type": "text", "text": "Which ?"}, {"type": "image_url"}]}, "images or files"),
        ("m5", {"error": {"content": "Connection lost"}}, "did not end"),
        ("m5", {"done": False}, "did not end"),
        ("m3", {"content": ""}, "without the text"),
        ("m5", {"role": "tool"}, "no reply"),
    ],
)
def test_ratings_that_a_bot_cannot_learn_from_are_left_out_and_counted(name, changes, reason):
    found = open_webui_read(with_message(name, **changes), row())
    assert (len(found.records), sum(found.left_out.values())) == (1, 1)
    assert reason in next(iter(found.left_out))


def test_replies_of_other_models_are_left_out_unless_they_are_chosen():
    def of(model, served="small:latest"):
        return row(
            data={"rating": 1, "model_id": model}, meta={"message_id": "m5", "chat_id": model, "model_id": served}
        )

    rows = [of("small:latest"), of("large:latest"), of("small:latest")]
    found = open_webui_read(*rows)
    assert [one.group for one in found.records] == ["small:latest"] * 2
    assert list(found.left_out.values()) == [1]
    assert "other models than small:latest" in next(iter(found.left_out))
    chosen = open_webui.read([("row", one) for one in rows], "large:latest")
    assert ([one.group for one in chosen.records], *chosen.left_out.values()) == (["large:latest"], 2)
    with pytest.raises(UserError, match="no rating is of a reply of 'tiny'; found are small:latest, large:latest"):
        open_webui.read([("row", one) for one in rows], "tiny")
    one_each = open_webui_read(of("large:latest"), of("small:latest"))  # the one that the chats name
    assert [one.group for one in one_each.records] == ["small:latest"]


def test_a_merged_answer_is_what_the_chat_goes_on_with():
    merged = {"status": True, "content": "Two streets , on foot ."}
    found = open_webui_read(with_message("m3", merged=merged), with_message("m5", merged=merged))
    said = [[turn.text for turn in one.turns] for one in found.records]
    assert said[0] == ["Is it far ?", "Two streets , on foot .", "Which ones ?", "The next two ."]
    assert said[1][-1] == "The next two ."


def test_a_reply_that_was_edited_is_an_edit():
    changes = {"content": "The next two on the left .", "originalContent": "The next two ."}
    (record,) = open_webui_read(with_message("m5", **changes)).records
    (judgement,) = record.judgements
    assert (judgement.kind, judgement.turn, judgement.text) == ("edit", 3, "The next two on the left .")
    assert record.turns[3].text == "The next two ."
    disliked = with_message("m5", **changes) | {"data": {"rating": -1}}
    assert list(open_webui_read(disliked).left_out) == ["ratings of replies that were edited and not liked"]


def test_the_text_of_newer_versions_is_in_the_items_of_the_output():
    items = [
        {"type": "reasoning", "content": [{"type": "output_text", "text": "Hm"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "The next two ."}]},
    ]
    (record,) = open_webui_read(with_message("m5", content="", output=items)).records
    assert record.turns[-1].text == "The next two ."


def test_what_is_not_read_of_a_chat_is_named():
    system = message("m0", None, "system", "You guide guests .")
    messages = {"m0": system, **MESSAGES, "m1": MESSAGES["m1"] | {"parentId": "m0"}}
    messages["m5"] = MESSAGES["m5"] | {"sources": [{"document": ["A map"]}]}
    chat = {"history": {"messages": messages}, "params": {"system": "Be short ."}}
    found = open_webui_read(row(snapshot={"chat": {"chat": chat}}), row())
    assert found.unread == {"system prompts": 1, "sources of a reply": 1, "data.tags": 2}
    assert found.records[0].turns[0].text == "Is it far ?"


def test_what_cannot_be_used_is_counted():
    circle = {"m1": message("m1", "m2", "user", "a"), "m2": message("m2", "m1", "assistant", "b")}
    snapshot = {"chat": {"chat": {"history": {"messages": circle}}}}
    found = open_webui_read(
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
        open_webui_read(row(flavour=1))


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
        ({"prompt": "a", "completion": "b", "label": True, "rating": 3}, "kto", "KTO format has no column 'rating'"),
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
    (record,) = trl_read(trl.export_rows(examples, "kto", True), "kto")
    assert [text for *_, text in turns(record)] == ["Hello .", "Hi .", "Is it far ?", "Yes ."]
    assert [speaker for _, speaker, _ in turns(record)] == ["user", "agent", "user", "agent"]


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
