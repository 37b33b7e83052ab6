"""Imports and exports of feedback."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store import exports
from rlhf_dialog.feedback.store.imports import import_file
from rlhf_dialog.feedback.store.store import Rating, Store, TurnOrigin, is_heldout

KTO = [{"prompt": f"Question {n} ?", "completion": f"Answer {n} .", "label": n % 2 == 0} for n in range(40)]
DPO = [{"prompt": "Is it far ?", "chosen": "Two streets .", "rejected": "Yes ."}]


@pytest.fixture
def store(tmp_path):
    found = Store.create(tmp_path / "feedback.sqlite")
    yield found
    found.close()


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def everything(store):
    return exports.export_rows(store, "jsonl")


def test_the_same_file_twice_adds_nothing(store, tmp_path):
    path = jsonl(tmp_path / "kto.jsonl", KTO)
    added = import_file(store, path)
    assert (added.format, added.dialogues, added.events, added.num_known) == ("kto", 40, 40, 0)
    before = everything(store)
    again = import_file(store, path.rename(tmp_path / "renamed.jsonl"))
    assert (again.dialogues, again.events, again.num_known) == (0, 0, 80)
    assert everything(store) == before
    more = import_file(store, jsonl(path, [*KTO, {**KTO[0], "label": False}, DPO[0] | {}][:41]))
    assert (more.dialogues, more.events) == (0, 1)
    assert store.feedback()[-1].value == -1  # the newest counts


def test_people_are_hashed_and_nothing_is_on_policy(store, tmp_path):
    rows = [{**KTO[0], "user_id": 7}, {**KTO[1], "user_id": 7}, {**KTO[2], "user_id": "ann@example.org"}, KTO[3]]
    import_file(store, jsonl(tmp_path / "kto.jsonl", rows))
    people = [event.person for event in store.feedback()]
    assert people == [
        *[store.hash_person("import:kto:7")] * 2,
        store.hash_person("import:kto:ann@example.org"),
        store.hash_person("import:kto"),
    ]
    assert {dialogue.source for dialogue in store.dialogues()} == {"import:kto"}
    turns = [turn for dialogue in store.dialogues() for turn in store.turns(dialogue.id)]
    assert {(turn.token_ids, turn.logprobs, turn.version) for turn in turns} == {(None, None, None)}
    assert b"example.org" not in store.path.read_bytes()


def test_a_name_keeps_two_data_sets_apart(store, tmp_path):
    path = jsonl(tmp_path / "kto.jsonl", KTO[:1])
    import_file(store, path)
    added = import_file(store, path, name="monday")
    assert added.dialogues == 1
    assert [dialogue.source for dialogue in store.dialogues()] == ["import:kto", "import:monday"]
    assert store.feedback()[1].person == store.hash_person("import:monday")


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
    dialogue = store.begin("ann", "terminal")
    answer = store.add_turn(dialogue, 0, "agent", "Hello .", TurnOrigin(token_ids=[1], logprobs=[-1.0], version="0001"))
    store.add_feedback(dialogue, "bob", Rating("thumb", turn=answer, value=1))
    store.add_feedback(dialogue, "bob", Rating("thumb", turn=answer, value=-1))
    path = tmp_path / "export.jsonl"
    exports.write_jsonl(path, everything(store))
    before = everything(store)
    assert import_file(store, path).events == 0
    assert everything(store) == before
    other = Store.create(tmp_path / "other.sqlite")
    assert (import_file(other, path).events, import_file(other, path).events) == (2, 0)
    (copied,) = other.dialogues()
    assert (copied.id, copied.heldout, copied.source) == (dialogue, is_heldout(dialogue), "import:rlhf-dialog")
    assert copied.started == store.dialogues()[0].started
    assert [event.value for event in other.feedback()] == [-1]
    assert other.feedback()[0].person == other.hash_person(f"{store.bot}:{store.hash_person('bob')}")
    assert other.turns(dialogue)[0].token_ids is None
    other.close()


def test_people_of_this_bot_stay_who_they_are(store, tmp_path):
    dialogue = store.begin("ann", "terminal")
    store.add_feedback(dialogue, "ann", Rating("dialogue_score", value=5))
    exports.write_jsonl(tmp_path / "export.jsonl", everything(store))
    assert store.forget(store.hash_person("ann")) == 2
    import_file(store, tmp_path / "export.jsonl")
    assert store.people() == {store.hash_person("ann")}


def test_a_file_is_added_whole_or_not_at_all(store, tmp_path, monkeypatch):
    path = jsonl(tmp_path / "dpo.jsonl", [*DPO, {**DPO[0], "rejected": "Two streets ."}])
    with pytest.raises(UserError, match="line 2"):
        import_file(store, path)
    calls = []

    def fails(*_):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return 1

    monkeypatch.setattr("rlhf_dialog.feedback.store.imports._known_events", lambda *_: fails() and set())
    with pytest.raises(KeyboardInterrupt):
        import_file(store, jsonl(tmp_path / "kto.jsonl", KTO))
    assert store.dialogues() == []


def test_a_folder_of_datasets_and_a_parquet_file(store, tmp_path):
    from datasets import Dataset

    Dataset.from_list(KTO).save_to_disk(tmp_path / "folder")
    assert import_file(store, tmp_path / "folder").events == 40
    Dataset.from_list(KTO).to_parquet(tmp_path / "kto.parquet")
    assert import_file(store, tmp_path / "kto.parquet").events == 0


def test_what_is_not_known_is_one_message(store, tmp_path):
    for name, content, words in [
        ("absent.jsonl", None, "no such file or folder"),
        (
            "rows.jsonl",
            '{"question": "x", "reply": "y"}\n',
            "the columns 'question', 'reply' are those of no known format",
        ),
        ("rows.json", "{", "is not JSON"),
        ("rows.txt", "x", "unknown file type"),
        ("rows.csv", "prompt,completion,label,colour\na,b,true,red\n", "KTO format has no column 'colour'"),
    ]:
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=words) as caught:
            import_file(store, tmp_path / name)
        assert name in str(caught.value)
    assert import_file(store, tmp_path / "rows.csv", ignored=("colour",)).events == 1


def test_what_counts_now_in_the_columns_of_trl(store):
    dialogue = store.begin("ann", "terminal")
    store.add_turn(dialogue, 0, "user", "Is it far ?")
    first = store.add_turn(dialogue, 1, "agent", "Yes .")
    second = store.add_turn(dialogue, 1, "agent", "Two streets .")
    store.add_feedback(dialogue, "ann", Rating("thumb", turn=first, value=1))
    store.add_feedback(dialogue, "ann", Rating("score", turn=second, value=3))
    asked, yes, streets, foot = (
        [{"role": role, "content": text}]
        for role, text in (
            ("user", "Is it far ?"),
            *(("assistant", text) for text in ("Yes .", "Two streets .", "Two streets, on foot .")),
        )
    )
    assert exports.export_rows(store, "kto") == [{"prompt": asked, "completion": yes, "label": True}]
    store.add_feedback(dialogue, "ann", Rating("thumb", turn=first, value=-1))
    store.add_feedback(dialogue, "ann", Rating("choice", turn=second, other=first))
    store.add_feedback(dialogue, "ann", Rating("edit", turn=second, text="Two streets, on foot ."))
    assert exports.export_rows(store, "kto") == [{"prompt": asked, "completion": yes, "label": False}]
    assert exports.export_rows(store, "dpo") == [
        {"prompt": asked, "chosen": streets, "rejected": yes},
        {"prompt": asked, "chosen": foot, "rejected": streets},
    ]


def test_files(store, tmp_path):
    with pytest.raises(UserError, match="there are no dialogues to export"):
        exports.export_rows(store, "jsonl")
    rows = [{"prompt": "naïve ?", "completion": "Yes .", "label": True}]
    exports.write_jsonl(tmp_path / "x.jsonl", rows)
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()] == rows
