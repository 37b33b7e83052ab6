"""Imports and exports of feedback: our own format and TRL's columns."""

import json

import pytest

from rlhf_dialog.data.sources import load_rows
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.examples import AnswerPair, RatedAnswer, read_examples
from rlhf_dialog.feedback.store.formats import native, trl
from rlhf_dialog.feedback.store.imports import import_file
from rlhf_dialog.feedback.store.store import Rating, Store, is_heldout
from tests.parts.bots import exchange

KTO = [{"prompt": f"Question {n} ?", "completion": f"Answer {n} .", "label": n % 2 == 0} for n in range(40)]
DPO = [{"prompt": "Is it far ?", "chosen": "Two streets .", "rejected": "Yes ."}]
ASK = {"role": "user", "content": "Is it far ?"}
YES, STREETS = ({"role": "assistant", "content": text} for text in ("Yes .", "Two streets ."))
ABOUT = ("thumb", "p", "d", 1)


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def turns(record):
    return [(turn.position, turn.speaker, turn.text) for turn in record.turns]


def trl_read(rows, form):
    return trl.read([(f"row {number}", row) for number, row in enumerate(rows, 1)], form)


def test_the_same_file_twice_adds_nothing(store, tmp_path):
    path = jsonl(tmp_path / "kto.jsonl", KTO)
    added = import_file(store, path)
    assert (added.format, added.dialogues, added.events, added.num_known) == ("kto", 40, 40, 0)
    before = native.export_rows(store)
    again = import_file(store, path.rename(tmp_path / "renamed.jsonl"))
    assert (again.dialogues, again.events, again.num_known) == (0, 0, 80)
    assert native.export_rows(store) == before
    more = import_file(store, jsonl(path, [*KTO, {**KTO[0], "label": False}]))
    assert (more.dialogues, more.events) == (0, 1)
    assert store.feedback()[-1].value == -1  # the newest counts
    named = import_file(store, jsonl(path, KTO[:1]), name="monday")
    assert named.dialogues == 1  # a name keeps two data sets apart
    assert {dialogue.source for dialogue in store.dialogues()} == {"import:kto", "import:monday"}
    assert store.feedback()[-1].person == store.hash_person("import:monday")


def test_people_are_hashed_and_nothing_is_on_policy(store, tmp_path):
    rows = [{**KTO[0], "user_id": 7}, {**KTO[1], "user_id": 7}, {**KTO[2], "user_id": "ann@example.org"}, KTO[3]]
    import_file(store, jsonl(tmp_path / "kto.jsonl", rows))
    people = [event.person for event in store.feedback()]
    names = ["import:kto:7", "import:kto:7", "import:kto:ann@example.org", "import:kto"]
    assert people == [store.hash_person(name) for name in names]
    stored = [turn for dialogue in store.dialogues() for turn in store.turns(dialogue.id)]
    assert {(turn.token_ids, turn.logprobs, turn.version) for turn in stored} == {(None, None, None)}
    assert b"example.org" not in store.path.read_bytes()


def test_what_answers_one_prompt_is_held_out_together(store, tmp_path):
    rows = [{**KTO[n], "completion": f"Another answer {k} ."} for n in range(40) for k in range(3)]
    import_file(store, jsonl(tmp_path / "kto.jsonl", rows))
    found = store.dialogues()
    assert all(dialogue.heldout == is_heldout(dialogue.id) for dialogue in found)
    sides = {}
    for dialogue in found:
        sides.setdefault(store.turns(dialogue.id)[0].text, set()).add(dialogue.heldout)
    assert {len(some) for some in sides.values()} == {1}
    assert 0 < sum(some == {True} for some in sides.values()) < 20


def test_an_export_into_another_bot_and_back(store, tmp_path):
    origin = {"token_ids": [1], "logprobs": [-1.0], "sampling": {"top_k": 0}, "version": "0001"}
    dialogue, (answer, other) = exchange(store, "ann", "naïve ?", ("Hello .", "Hi ."), **origin)
    store.add_feedback(dialogue, "bob", Rating("thumb", turn=answer, value=1))
    store.add_feedback(dialogue, "bob", Rating("thumb", turn=answer, value=-1, text="short"))
    store.add_feedback(dialogue, "bob", Rating("choice", turn=other, other=answer))
    path, before = tmp_path / "export.jsonl", native.export_rows(store)
    jsonl(path, before)
    assert before[0]["turns"][1]["token_ids"] == [1]
    assert import_file(store, path).events == 0
    assert native.export_rows(store) == before
    copy = Store.create(tmp_path / "other.sqlite")
    assert (import_file(copy, path).events, import_file(copy, path).events) == (3, 0)
    (copied,) = copy.dialogues()
    assert (copied.id, copied.heldout, copied.source) == (dialogue, is_heldout(dialogue), "import:rlhf-dialog")
    assert copied.started == store.dialogues()[0].started
    said = [(turn.position, turn.speaker, turn.text, turn.token_ids) for turn in copy.turns(dialogue)]
    assert said == [(0, "user", "naïve ?", None), (1, "agent", "Hello .", None), (1, "agent", "Hi .", None)]
    ids = [turn.id for turn in copy.turns(dialogue)]
    about = [(one.kind, one.turn, one.other, one.value, one.text) for one in copy.feedback(newest=False)]
    assert about == [
        *(("thumb", ids[1], None, 1, None), ("thumb", ids[1], None, -1, "short")),
        ("choice", ids[2], ids[1], None, None),
    ]
    created = [[one.created for one in some.feedback(newest=False)] for some in (store, copy)]
    assert created[0] == created[1]
    assert copy.feedback()[0].person == copy.hash_person(f"{store.bot}:{store.hash_person('bob')}")
    copy.close()


@pytest.mark.parametrize(
    "value", ["Infinity", "-Infinity", "NaN", "1e400", "1" + "0" * 400, "3e11", "-1", '"now"', "true"]
)
@pytest.mark.parametrize("place", ["started", "turn", "event"])
def test_a_time_that_no_date_has_is_a_bad_row_and_nothing_is_added(store, tmp_path, place, value):
    dialogue, (answer,) = exchange(store)
    store.add_feedback(dialogue, "ann", Rating("thumb", turn=answer, value=1))
    (row,) = native.export_rows(store)
    {"started": row["dialogue"], "turn": row["turns"][1], "event": row["feedback"][0]}[place][
        "started" if place == "started" else "created"
    ] = "TIME"
    path = jsonl(tmp_path / "export.jsonl", [row])
    path.write_text(path.read_text().replace('"TIME"', value))
    copy = Store.create(tmp_path / "other.sqlite")
    with pytest.raises(UserError, match=r"export.jsonl.*: is damaged \(.*time"):
        import_file(copy, path)
    assert native.export_rows(copy) == []
    copy.close()


@pytest.mark.parametrize("text", [5, ["a"], {"a": 1}, True])
def test_a_reason_that_is_no_text_is_a_bad_row(store, tmp_path, text):
    dialogue, (answer,) = exchange(store)
    store.add_feedback(dialogue, "ann", Rating("thumb", turn=answer, value=1))
    (row,) = native.export_rows(store)
    row["feedback"][0]["text"] = text
    with pytest.raises(UserError, match=r"export.jsonl.*: is damaged \(.*text"):
        import_file(store, jsonl(tmp_path / "export.jsonl", [row]))


def full_rows(store):
    """The export of a dialogue that has everything, and of one that has nothing of it."""
    outside = [store.hash_outside(name) for name in ("user", "chat", "message", "rating")]
    dialogue = store.begin("ann", "api", system="Be brief .", user=outside[0], chat=outside[1])
    store.add_turn(dialogue, 0, "user", "Hello .", is_copy=True)
    turn = store.add_turn(dialogue, 1, "agent", "Ye", answer="a" * 32, message=outside[2], is_stopped=True)
    event = store.add_feedback(dialogue, "ann", Rating("thumb", turn, 1))
    with store.writing() as connection:
        connection.execute("INSERT INTO pulled VALUES (?, ?)", (outside[3], event))
    exchange(store, "bob")
    return native.export_rows(store), outside


def without_numbers(rows):
    """An export without the ids that another store gives, and without what another bot's answers came from."""
    left_out = {"id", "turn", "source", "token_ids", "logprobs", "sampling", "version", "other"}
    parts = [[row["dialogue"], *row["turns"], *row["feedback"]] for row in rows]
    return [[{key: one[key] for key in one.keys() - left_out} for one in part] for part in parts]


def test_an_export_keeps_what_comes_with_dialogues_turns_and_events(store, tmp_path):
    rows, outside = full_rows(store)
    assert [row["format_version"] for row in rows] == [2, 1]  # older programs read the second
    assert rows[0]["dialogue"].items() >= {"system": "Be brief .", "user": outside[0], "chat": outside[1]}.items()
    assert rows[0]["turns"][0]["is_copy"]
    assert rows[0]["turns"][1].items() >= {"answer": "a" * 32, "message": outside[2], "is_stopped": True}.items()
    assert rows[0]["feedback"][0]["pulled"] == [outside[3]]
    keys = {"id", "position", "speaker", "text", "token_ids", "logprobs", "sampling", "version", "created"}
    assert [set(turn) for turn in rows[1]["turns"]] == [keys, keys]
    path = jsonl(tmp_path / "export.jsonl", rows)
    store.forget(store.hash_person("ann"))
    import_file(store, path)
    again = native.export_rows(store)[::-1]
    assert without_numbers(again) == without_numbers(rows)
    assert import_file(store, path).num_known == 3
    copy = Store.create(tmp_path / "other.sqlite")
    import_file(copy, path)
    (row, _) = native.export_rows(copy)
    assert copy.find_answer("a" * 32).text == "Ye"
    assert (copy.system(row["dialogue"]["id"]), len(copy.stopped()), len(copy.copies())) == ("Be brief .", 1, 1)
    assert row["dialogue"]["user"] == copy.hash_outside(f"{store.bot}:{outside[0]}")
    assert row["turns"][1]["message"] == copy.hash_outside(f"{store.bot}:{outside[2]}")
    copy.close()


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        *[("dialogue", "system", 5), ("dialogue", "user", "ann"), ("dialogue", "chat", "F" * 16), ("dialogue", "x", 1)],
        *[
            ("turn", "answer", "a" * 31),
            ("turn", "message", "raw"),
            ("turn", "is_stopped", 1),
            ("turn", "is_copy", True),
        ],
        *[("event", "pulled", "0" * 16), ("event", "pulled", ["raw"]), ("event", "pulled", [5])],
    ],
)
def test_what_comes_with_a_dialogue_is_checked(store, tmp_path, place, key, value):
    (row, _), _ = full_rows(store)
    {"dialogue": row["dialogue"], "turn": row["turns"][1], "event": row["feedback"][0]}[place][key] = value
    with pytest.raises(UserError, match=r"export.jsonl.*: is damaged"):  # a copy cannot be rated
        import_file(store, jsonl(tmp_path / "export.jsonl", [row]))


def test_people_of_this_bot_stay_who_they_are(store, tmp_path):
    dialogue = store.begin("ann", "terminal")
    store.add_feedback(dialogue, "ann", Rating("dialogue_score", value=5))
    jsonl(tmp_path / "export.jsonl", native.export_rows(store))
    assert store.forget(store.hash_person("ann")) == 2
    import_file(store, tmp_path / "export.jsonl")
    assert store.people() == {store.hash_person("ann")}


def test_a_file_is_added_whole_or_not_at_all(store, tmp_path, monkeypatch):
    calls = []

    def fails(*_):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return set()

    monkeypatch.setattr("rlhf_dialog.feedback.store.imports._known_events", fails)
    with pytest.raises(KeyboardInterrupt):
        import_file(store, jsonl(tmp_path / "kto.jsonl", KTO))
    assert store.dialogues() == []


def test_a_folder_of_datasets_a_parquet_file_and_a_column_that_is_ignored(store, tmp_path):
    from datasets import Dataset

    Dataset.from_list(KTO).save_to_disk(tmp_path / "folder")
    assert import_file(store, tmp_path / "folder").events == 40
    Dataset.from_list(KTO).to_parquet(tmp_path / "kto.parquet")
    assert import_file(store, tmp_path / "kto.parquet").events == 0
    (tmp_path / "rows.csv").write_text("prompt,completion,label,colour\na,b,true,red\n")
    with pytest.raises(UserError, match="'colour'"):
        import_file(store, tmp_path / "rows.csv")
    assert import_file(store, tmp_path / "rows.csv", ignored=("colour",)).events == 1


def test_rows_of_an_export_are_read_again():
    answer = RatedAnswer(("Hello .", "Hi .", "Is it far ?"), "Yes .", False, *ABOUT)
    pair = AnswerPair(("Is it far ?",), "Two streets .", "Yes .", *ABOUT)
    before = [{"role": "user", "content": "Hello ."}, {"role": "assistant", "content": "Hi ."}, ASK]
    kto, dpo = (trl.export_rows([answer, pair], form) for form in ("kto", "dpo"))
    assert kto == [{"prompt": before, "completion": [YES], "label": False}]
    assert dpo == [{"prompt": [ASK], "chosen": [STREETS], "rejected": [YES]}]
    (record,) = trl_read(kto, "kto").records
    said = ["Hello .", "Hi .", "Is it far ?", "Yes ."]
    assert turns(record) == [(i, ("user", "agent")[i % 2], text) for i, text in enumerate(said)]


def test_a_system_message_is_exported_and_read_again(store, tmp_path):
    answer = RatedAnswer(("Is it far ?",), "Yes .", False, *ABOUT)
    pair = AnswerPair(("Is it far ?",), "Two streets .", "Yes .", *ABOUT)
    system = {"role": "system", "content": "Be brief ."}
    for form in ("kto", "dpo"):
        rows = trl.export_rows(
            [one._replace(system=text) for one in (answer, pair) for text in ("Be brief .", None)], form
        )
        assert [row["prompt"] for row in rows] == [[system, ASK], [ASK]]
        assert import_file(store, jsonl(tmp_path / f"{form}.jsonl", rows)).dialogues == 2
    assert [store.system(one.id) for one in store.dialogues()] == ["Be brief .", None] * 2
    assert [one.system for one in read_examples(store).all] == ["Be brief .", None] * 2


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Is it far ?", "completion": "Yes .", "label": False},
        {"prompt": [ASK], "completion": [YES], "label": "false"},
        {"prompt": [ASK], "completion": [ASK, YES], "label": 0, "id": 7},  # which repeats the prompt
        {"prompt": "Is it far ?", "chosen": "Two streets .", "rejected": "Yes ."},
        {"prompt": [ASK], "chosen": [STREETS], "rejected": [YES], "user_id": 9},
        {"chosen": [ASK, STREETS], "rejected": [ASK, YES], "score_chosen": 8.0, "score_rejected": 5.0},
        {"prompt": "Is it far ?", "chosen": [ASK, STREETS], "rejected": [ASK, YES]},
    ],
)
def test_the_columns_of_trl(row):
    is_kto = "label" in row
    (record,) = trl_read([row], "kto" if is_kto else "dpo").records
    answers = ["Yes ."] if is_kto else ["Two streets .", "Yes ."]
    assert turns(record) == [(0, "user", "Is it far ?"), *((1, "agent", text) for text in answers)]
    (one,) = record.judgements
    wanted = ("thumb", 1, -1, None) if is_kto else ("choice", 1, None, 2)
    assert (one.kind, one.turn, one.value, one.other) == wanted
    assert one.person == ("9" if "user_id" in row else None)


def test_the_prompt_that_two_texts_share():
    shared = "Human: Is it far to the old station ?\n\nAssistant:"
    (record,) = trl_read([{"chosen": f"{shared} Two streets .", "rejected": f"{shared} Yes ."}], "dpo").records
    assert turns(record) == [(0, "user", shared), (1, "agent", "Two streets ."), (1, "agent", "Yes .")]
    (record,) = trl_read([{"chosen": "Yes . Two streets .", "rejected": "Yes . Far ."}], "dpo").records
    assert turns(record) == [(0, "agent", "Yes . Two streets ."), (0, "agent", "Yes . Far .")]


def test_messages_system_messages_and_images_are_read_as_in_training(tmp_path):
    system = {"role": "system", "content": "You guide guests ."}
    parts = {"role": "human", "content": [{"type": "text", "text": "Which"}, {"type": "text", "text": "ones ?"}]}
    image = {"role": "user", "content": [{"type": "text", "text": "Here ?"}, {"type": "image", "image": "x"}]}
    thoughtful = YES | {"reasoning_content": "They ask for the way ."}
    rows = [
        {"prompt": [system, ASK, {"from": "gpt", "value": "Two ."}, parts], "completion": [thoughtful], "label": True},
        {"prompt": [image], "completion": [YES], "label": True},
    ]
    found = trl_read(rows, "kto")
    said = [(0, "user", "Is it far ?"), (1, "agent", "Two ."), (2, "user", "Which ones ?"), (3, "agent", "Yes .")]
    assert [turns(one) for one in found.records] == [said]
    assert [one.system for one in found.records] == ["You guide guests ."]
    assert found.unread == {"reasoning_content of a turn": 1}
    assert [("image" in reason, n) for reason, n in found.left_out.items()] == [(True, 1)]
    late = trl_read([{"prompt": [ASK, YES, system, ASK], "completion": [YES], "label": True}], "kto")
    assert ([one.system for one in late.records], late.unread) == ([None], {"system message": 1})
    human = "\n\nHuman: Hello .\n\nAssistant: Hi .\n\nHuman: Is it far ?\n\nAssistant:"
    path = jsonl(tmp_path / "dpo.jsonl", [{"prompt": [ASK], "chosen": f"{human} Yes .", "rejected": f"{human} No ."}])
    (record,) = trl.read(load_rows(str(path), "train"), "dpo").records
    assert [text for *_, text in turns(record)] == ["Hello .", "Hi .", "Is it far ?", "Yes .", "No ."]


@pytest.mark.parametrize(
    ("form", "bad"),
    [("kto", {"completion": None}), ("kto", {"prompt": ""}), ("dpo", {"chosen": ""}), ("dpo", {"rejected": "Left ."})],
    ids=str,
)
def test_a_few_rows_without_text_are_left_out_and_counted(form, bad):
    answer = {"kto": {"completion": "Yes .", "label": True}, "dpo": {"chosen": "Left .", "rejected": "Yes ."}}[form]
    rows = [{"prompt": f"Question {number} ?", **answer} for number in range(1, 11)]
    rows[6] |= bad
    found = trl_read(rows, form)
    assert (len(found.records), list(found.left_out.values())) == (9, [1])
    assert "row 7" in next(iter(found.left_out))
    with pytest.raises(UserError, match=r"(?s)1 of 9 rows cannot be used.*row 7"):
        trl_read(rows[:9], form)
