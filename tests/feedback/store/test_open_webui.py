"""Ratings in Open WebUI's export, laid on stored answers: which answer, whose rating, what it says, and what is left out."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.examples import read_examples
from rlhf_dialog.feedback.store.formats import native
from rlhf_dialog.feedback.store.formats.open_webui import lay_ratings
from rlhf_dialog.feedback.store.imports import import_file
from rlhf_dialog.feedback.store.store import Rating, TurnOrigin
from tests.parts.open_webui import ASKED, chat, rating, said_by

SUNDAY = [*ASKED, ("user", "u2", "And on Sunday ?"), ("assistant", "a2", "From eight .")]


def talk(store, *lines, person="terminal", chat="chat", answers=(), user=None, **origin):
    """A dialogue of the API: its id, and the ids of its turns; `answers` are other ones to the last message, after the first."""
    chat = None if chat is None else store.hash_outside(chat)
    dialogue = store.begin(person, "api", chat=chat, user=user)
    turns = []
    for position, (role, message, text) in [*enumerate(lines), *((len(lines) - 1, one) for one in answers)]:
        is_answer = role == "assistant"
        number = f"{position:x}{len(turns):x}".rjust(32, "0")
        turns.append(
            store.add_turn(
                dialogue,
                position,
                "agent" if is_answer else "user",
                text,
                TurnOrigin(version="0001") if is_answer else TurnOrigin(),
                answer=dialogue[:30] + number[-2:] if is_answer else None,
                message=store.hash_outside(message) if is_answer and origin.get("named", True) else None,
                is_stopped=is_answer and origin.get("stopped", False),
            )
        )
    return dialogue, turns


def lay(store, *rows, origin=None, is_sender=lambda *_: True):
    return lay_ratings(store, rows, is_sender, origin)


def counting(store):
    """What counts: kind, turn, value or the other answer, text."""
    return [(one.kind, one.turn, one.other or one.value, one.text) for one in store.feedback()]


@pytest.mark.parametrize("named", [True, False], ids=["by the id of the message", "by history and text"])
def test_a_thumb_is_laid_on_the_answer_that_is_stored(store, named):
    _, turns = talk(store, *SUNDAY, named=named)
    rows = (
        rating("a2", chat=chat(SUNDAY), reason="accurate_information", comment="Short and right"),
        rating("a1", -1, id="second", chat=chat(SUNDAY), updated_at=1795877700),
    )
    added = lay(store, *rows)
    assert (added.format, added.events, added.dialogues, added.left_out) == ("open-webui", 2, 0, {})
    assert counting(store) == [
        ("thumb", turns[3], 1, "accurate_information: Short and right"),
        ("thumb", turns[1], -1, None),
    ]
    first, second = store.feedback()
    assert {first.person, second.person} == {store.hash_person("terminal")}
    assert (first.created, second.created) == (1795877604, 1795877700)
    assert len(read_examples(store).answers) == 2
    assert b"accurate" in store.path.read_bytes() + store.path.with_name("feedback.sqlite-wal").read_bytes()
    assert (
        b"user-of-open-webui" not in store.path.read_bytes() + store.path.with_name("feedback.sqlite-wal").read_bytes()
    )


def test_only_a_history_that_fits_one_answer_alone_says_which_it_is(store):
    _, turns = talk(store, *SUNDAY, named=False, chat=None)
    other = [("user", "u1", "When is dinner ?"), *SUNDAY[1:]]
    assert said_by(lay(store, rating("a2", chat=chat(other)))) == {"that the store does not have": 1}
    spaced = [(role, name, f"\n {text}\r\n") for role, name, text in SUNDAY]
    assert lay(store, rating("a2", chat=chat(spaced))).events == 1
    talk(store, *SUNDAY, named=False, chat=None, person="somebody else")
    assert said_by(lay(store, rating("a1", chat=chat(SUNDAY)))) == {"fit several": 1}
    _, turns = talk(store, *SUNDAY, named=False, chat="chat")
    assert lay(store, rating("a1", chat=chat(SUNDAY))).events == 1
    assert counting(store)[-1][1] == turns[1]  # of three, the one in this chat


def test_the_copy_of_a_chat_has_the_ids_of_the_first_and_is_not_it(store):
    talk(store, *SUNDAY)
    assert said_by(lay(store, rating("a1", chat=chat(SUNDAY, "copy")))) == {"does not have": 1}
    assert store.feedback() == []


def test_a_text_with_another_id_is_no_second_way_to_an_answer_with_an_id(store):
    talk(store, *ASKED)
    other = [ASKED[0], ("assistant", "of-another-model", ASKED[1][2])]
    assert said_by(lay(store, rating("of-another-model", chat=chat(other), model="llama"))) == {"'llama'": 1}


def test_line_ends_thoughts_and_calls_of_tools_are_not_compared(store):
    talk(store, ASKED[0], ("assistant", "a1", "<think>Now ?</think>\nFrom seven .\nEach day ."), named=False)
    page = '<details type="reasoning" done="true">\n<summary>Thought</summary>\n> Now ?\n</details>\n'
    page += '<details type="tool_calls" name="clock" arguments="&quot;&gt;"><summary>Clock</summary></details>'
    shown = [ASKED[0], ("assistant", "a1", f"{page}From seven .\r\nEach day . ")]
    added = lay(store, rating("a1", chat=chat(shown)))
    assert (added.events, added.left_out) == (1, {})


def test_what_cannot_be_laid_is_counted_with_the_reason(store):
    talk(store, *SUNDAY)
    image = chat(SUNDAY)
    image["chat"]["history"]["messages"]["u1"]["files"] = [{"type": "image", "url": "x"}]
    changed = chat([*SUNDAY[:3], ("assistant", "a2", "My own text .")])
    rows = [
        rating("a1", None, chat=chat(SUNDAY)),
        rating("a1", chat=chat(SUNDAY), type="note"),
        rating("a1", chat=image),
        rating("a2", chat=changed),
        rating("u2", chat=chat(SUNDAY)),
        rating("a1", chat=chat(SUNDAY), user_id="another"),
        rating("a1", chat=chat(SUNDAY), updated_at=float("inf")),
        rating("a9", chat=chat(SUNDAY)),
        rating("x", chat=chat([("user", "y", "Hi"), ("assistant", "x", "Hello .")]), model="llama"),
    ]
    added = lay(store, *rows)
    assert said_by(added) == {
        "without a thumb": 2,
        "images": 1,
        "changed": 1,
        "no answer": 1,
        "another person": 1,
        "or when": 1,
        "'bot'": 1,
        "'llama'": 1,
    }
    assert (added.events, store.feedback()) == (0, [])


def test_ten_steps_are_named_and_not_stored(store):
    talk(store, *ASKED)
    added = lay(store, rating("a1", chat=chat(ASKED), details={"rating": 8}))
    assert (added.events, added.unread) == (1, {"details.rating (1 to 10)": 1})


def test_an_answer_that_was_stopped_is_rated_as_far_as_it_came(store):
    _, turns = talk(store, *ASKED, stopped=True)
    shown = [ASKED[0], ("assistant", "a1", "From")]
    assert lay(store, rating("a1", chat=chat(shown))).events == 1
    assert counting(store) == [("thumb", turns[1], 1, None)]


def test_pulled_twice_nothing_changes_and_what_changed_is_a_new_event(store):
    talk(store, *SUNDAY)
    up = rating("a2", chat=chat(SUNDAY))
    assert lay(store, up, origin="http://a").events == 1
    before = native.export_rows(store)
    for again in (lay(store, up, origin="http://a"), lay(store, up)):
        assert (again.events, again.withdrawn, again.num_known) == (0, 0, 1)
    assert native.export_rows(store) == before
    down = rating("a2", -1, chat=chat(SUNDAY), comment="Wrong day", updated_at=1795877900)
    assert lay(store, down, origin="http://a").events == 1
    assert [event[2:] for event in counting(store)] == [(-1, "Wrong day")]
    assert len(store.feedback(newest=False)) == 2
    assert lay(store, up).events == 0  # an older file
    assert [event[2:] for event in counting(store)] == [(-1, "Wrong day")]


def test_a_deleted_rating_is_withdrawn_by_a_whole_pull_of_the_same_place(store):
    talk(store, *SUNDAY)
    first, second = rating("a1", chat=chat(SUNDAY)), rating("a2", id="second", chat=chat(SUNDAY))
    lay(store, first, second, origin="http://a")
    assert lay(store, first).withdrawn == 0  # a file may have a part
    assert lay(store, origin="http://b").withdrawn == 0
    assert len(counting(store)) == 2
    assert lay(store, first, origin="http://a").withdrawn == 1
    assert [event[1] for event in counting(store)] == [2]
    assert lay(store, first, origin="http://a").withdrawn == 0
    assert lay(store, first, second).events == 0  # the file of last week
    assert lay(store, first, second, origin="http://a").events == 1  # there again
    assert len(counting(store)) == 2


def test_what_a_file_brought_and_a_pull_has_seen_is_withdrawn_too(store):
    talk(store, *ASKED)
    row = rating("a1", chat=chat(ASKED))
    assert lay(store, row).events == 1
    assert lay(store, row, origin="http://a").num_known == 1
    assert lay(store, origin="http://a").withdrawn == 1
    assert counting(store) == []


def test_what_the_person_said_later_by_another_way_stands(store):
    dialogue, turns = talk(store, *ASKED)
    row = rating("a1", chat=chat(ASKED))
    lay(store, row, origin="http://a")
    store.add_feedback(dialogue, "terminal", Rating("thumb", turns[1], -1))
    assert lay(store, row, origin="http://a").events == 0
    assert lay(store, origin="http://a").withdrawn == 0
    assert counting(store) == [("thumb", turns[1], -1, None)]


OTHER = ("assistant", "b1", "Seven .")


def test_a_liked_answer_is_chosen_over_the_others_and_no_prompt_changes(store):
    dialogue, turns = talk(store, *ASKED, answers=[OTHER])
    shown = chat([*ASKED, OTHER], parents={"b1": "u1"})
    down = rating("b1", -1, chat=shown, siblings=["bot"])
    assert lay(store, down).events == 1
    assert counting(store) == [("thumb", turns[2], -1, None)]  # does not say that the other is good
    store.add_turn(dialogue, 2, "user", "And lunch ?")
    last = store.add_turn(dialogue, 3, "agent", "At noon .", TurnOrigin(version="0001"))
    before_it = store.turns(dialogue)[-1].created
    up = rating("a1", chat=shown, siblings=["bot"], id="up", updated_at=before_it)
    assert lay(store, up).events == 2
    assert counting(store)[1:] == [("thumb", turns[1], 1, None), ("choice", turns[1], turns[2], None)]
    store.add_feedback(dialogue, "terminal", Rating("thumb", last, 1))
    prompts = {one.response: one.prompt_turns for one in read_examples(store).answers}
    assert prompts["At noon ."] == (ASKED[0][2], "Seven .", "And lunch ?")  # what was seen
    assert lay(store, down, up).num_known == 3
    both = rating("b1", chat=shown, siblings=["bot"], updated_at=before_it + 1)
    added = lay(store, both, up)
    assert (added.events, added.withdrawn) == (1, 1)  # both are liked: neither is better
    assert [event[0] for event in counting(store)] == ["thumb", "thumb", "thumb"]
    assert lay(store, both, up).num_known == 2


def test_an_answer_stays_chosen_over_one_of_two_others(store):
    third = ("assistant", "c1", "About seven .")
    _, turns = talk(store, *ASKED, answers=[OTHER, third])
    shown = chat([*ASKED, OTHER, third], parents={"b1": "u1", "c1": "u1"})
    up = rating("a1", chat=shown, siblings=["bot", "bot"])
    assert lay(store, up).events == 3
    lay(store, up, rating("b1", chat=shown, id="second"))
    assert sorted(counting(store)[1:]) == [("choice", turns[1], turns[3], None), ("thumb", turns[2], 1, None)]


def test_of_two_ratings_of_an_answer_the_newer_counts(store):
    talk(store, *ASKED)
    older, newer = (
        rating("a1", chat=chat(ASKED)),
        rating("a1", -1, chat=chat(ASKED), id="second", updated_at=1795877900),
    )
    assert lay(store, newer, older).events == 2  # an export begins with the newest
    assert [event[2] for event in counting(store)] == [-1]
    assert lay(store, newer, older).num_known == 2


def test_answers_of_other_models_and_other_dialogues_are_not_chosen_over(store):
    talk(store, *ASKED)
    talk(store, ASKED[0], ("assistant", "c1", "At seven ."))
    others = [("assistant", "llama1", "Dunno ."), ("assistant", "c1", "At seven .")]
    shown = chat([*ASKED, *others], parents={"llama1": "u1", "c1": "u1"})
    added = lay(store, rating("a1", chat=shown, siblings=["llama", "bot"]))
    assert (added.events, said_by(added)) == (1, {"choices between": 1})


def test_a_person_rates_only_what_they_asked_for(store):
    talk(store, *ASKED, user=store.hash_outside("user of gate ann"))
    asked = []

    def is_sender(*who):
        asked.append(who)
        return False

    assert said_by(lay(store, rating("a1", chat=chat(ASKED)), is_sender=is_sender)) == {"another person": 1}
    assert asked == [("user-of-open-webui", store.hash_person("terminal"), store.hash_outside("user of gate ann"))]


def test_an_export_in_a_file_is_imported_and_a_name_is_refused(store, tmp_path):
    talk(store, *ASKED)
    path = tmp_path / "feedbacks.json"
    path.write_text(json.dumps([rating("a1", chat=chat(ASKED))]))
    assert import_file(store, path).events == 1
    with pytest.raises(UserError, match="--name"):
        import_file(store, path, name="monday")


def test_damaged_rows_are_counted_and_store_nothing(store):
    talk(store, *ASKED)
    good = rating("a1", chat=chat(ASKED))
    loop = chat(ASKED)
    loop["chat"]["history"]["messages"]["u1"]["parentId"] = "a1"
    changes = [{"data": None}, {"meta": 3}, {"id": 5}, {"updated_at": None, "created_at": "now"}, {"user_id": None}]
    changes += [
        {"snapshot": part} for part in (None, [], {"chat": {"chat": {"history": {"messages": [1]}}}}, {"chat": loop})
    ]
    added = lay(store, *(good | change for change in changes))
    assert sum(added.left_out.values()) == 5
    assert added.events == 1  # the id alone says which answer it is
