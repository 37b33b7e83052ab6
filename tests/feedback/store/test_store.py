"""The store: what is kept, what counts, what is refused, and what is gone after `forget`."""

import hashlib
import json
import random
import resource
import sqlite3
import time
from contextlib import closing

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats import native
from rlhf_dialog.feedback.store.store import Rating, Store, TurnOrigin, insert_event
from tests.parts.bots import exchange

ANN, BOB = "ann-7f3a", "bob-91cc"  # random ids, as in cookies


def talk(store, person=ANN, answer="Inside , please ."):
    """A dialogue of one exchange; its id and the answer's."""
    kept = {"token_ids": [5, 6], "logprobs": [-0.5, -1.25], "sampling": {"temperature": 0.7}, "version": "0001"}
    dialogue, (turn,) = exchange(store, person, "Where shall we sit ?", [answer], **kept)
    return dialogue, turn


def bytes_on_disk(store):
    return b"".join(path.read_bytes() for path in store.path.parent.iterdir())


def test_what_is_stored_comes_back(store):
    dialogue, answer = talk(store)
    (found,) = store.dialogues()
    assert (found.id, found.source) == (dialogue, "terminal")
    assert len(dialogue) == 32
    asked, answered = store.turns(dialogue)
    assert (asked.speaker, asked.text, asked.token_ids, asked.version) == ("user", "Where shall we sit ?", None, None)
    assert (answered.id, answered.position, answered.version) == (answer, 1, "0001")
    assert (answered.token_ids, answered.logprobs, answered.sampling) == ([5, 6], [-0.5, -1.25], {"temperature": 0.7})
    assert store.last_event() == 0
    event = store.add_feedback(dialogue, BOB, Rating("thumb", turn=answer, value=-1, text="too short"))
    (row,) = store.feedback()
    assert (row.id, row.turn, row.kind, row.value, row.text) == (event, answer, "thumb", -1, "too short")
    assert store.last_event() == event
    second, _ = talk(store)
    assert [(one.id, words) for one, words in store.list_dialogues(ANN)] == [
        (second, "Where shall we sit ?"),
        (dialogue, "Where shall we sit ?"),
    ]
    assert [one.id for one, _ in store.list_dialogues(ANN, limit=1)] == [second]
    store.add_turn(dialogue, 2, "user", "smile \ud83d and \U0001f600")
    assert store.turns(dialogue)[-1].text == "smile ? and \U0001f600"  # half a character


def test_of_a_person_only_a_salted_hash_is_kept(store):
    dialogue, answer = talk(store, ANN)
    store.add_feedback(dialogue, ANN, Rating("score", turn=answer, value=4))
    with closing(sqlite3.connect(store.path)) as plain:
        meta = dict(plain.execute("SELECT key, value FROM meta"))
        people = set(plain.execute("SELECT person FROM dialogues UNION SELECT person FROM feedback"))
    expected = hashlib.sha256((meta["salt"] + ANN).encode()).hexdigest()[:16]
    assert people == {(expected,)}
    assert store.hash_person(ANN) == expected
    assert store.people() == {expected}
    assert ANN.encode() not in bytes_on_disk(store)


def counting_by_hand(events):
    """As the documents say it, event by event: a newer one of the same kind on the same answers, or a withdrawal, ends it."""
    kept = []
    for event in events:
        about = [
            one for one in events if one.id > event.id and (one.person, one.dialogue) == (event.person, event.dialogue)
        ]
        newer = any(one.kind == event.kind and {one.turn, one.other} == {event.turn, event.other} for one in about)
        back = any(
            one.kind == "withdrawn"
            and (one.text, one.turn) == (event.kind, event.turn)
            and one.other in (None, event.other)
            for one in about
        )
        if event.kind != "withdrawn" and not newer and not back:
            kept.append(event.id)
    return kept


def test_what_counts_of_many_events(store):
    draw, answers = random.Random(0), {}
    for _ in range(3):
        dialogue, first = talk(store)
        answers[dialogue] = [first, *(store.add_turn(dialogue, 1, "agent", text) for text in ("Outside .", "Left ."))]
    with store.writing() as connection:
        for _ in range(400):
            dialogue = draw.choice(list(answers))
            turn, other = draw.sample(answers[dialogue], 2)
            kind = draw.choice(["thumb", "score", "edit", "choice", "withdrawn", "dialogue_score"])
            text = draw.choice(["thumb", "choice", "dialogue_score"]) if kind == "withdrawn" else None
            turn = None if "dialogue_score" in (kind, text) else turn
            has_other = kind == "choice" or (text == "choice" and draw.random() < 0.5)
            row = (dialogue, turn, kind, None, text, other if has_other else None, draw.choice("ab"), 0.0)
            insert_event(connection, row)
    for upto in (40, 250, None):
        events = store.feedback(upto=upto, newest=False)
        assert [one.id for one in store.feedback(upto=upto)] == counting_by_hand(events) != []


WRONG = [
    *[{"kind": "thumb", "value": value} for value in (2, None)],
    *[{"kind": "thumb", "value": 1, "turn": turn} for turn in (None, 999, "the question")],
    *[{"kind": "thumb", "value": 1, "dialogue": dialogue} for dialogue in ("0" * 32, "another")],
    *[{"kind": "score", "value": value} for value in (0, 2.5)],
    *[{"kind": "edit", "text": "  "}, {"kind": "edit", "text": "Outside .", "value": 1}, {"kind": "choice"}],
    *[{"kind": "choice", "other": other} for other in ("the answer", "the question", "a later answer")],
    *[{"kind": "dialogue_score", "value": 3}, {"kind": "dialogue_score", "value": 6, "turn": None}],
    *[{"kind": "withdrawn", "text": "withdrawn"}, {"kind": "praise", "value": 1}],
    {"kind": "withdrawn", "text": "thumb", "other": "another answer"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_feedback_that_cannot_be_is_refused(store, wrong):
    dialogue, answer = talk(store)
    named = {"the question": answer - 1, "the answer": answer, "another": talk(store)[0]}
    named["another answer"] = store.add_turn(dialogue, 1, "agent", "Outside .")
    named["a later answer"] = store.add_turn(dialogue, 3, "agent", "Outside .")
    given = {"dialogue": dialogue, "turn": answer, **wrong}
    given = {key: named.get(value, value) if isinstance(value, str) else value for key, value in given.items()}
    with pytest.raises(ValueError, match=r"feedback|dialogue"):
        store.add_feedback(given.pop("dialogue"), ANN, Rating(**given))
    assert store.feedback() == []


def test_turns_that_cannot_be_are_refused(store):
    dialogue, _ = talk(store)
    for arguments, keys in [
        (("0" * 32, 0, "user", "x"), {}),
        ((dialogue, 0, "system", "x"), {}),
        ((dialogue, -1, "user", "x"), {}),
        ((dialogue, 2, "agent", "x"), {"token_ids": [1], "logprobs": [-1.0, -2.0]}),
        ((dialogue, 2, "agent", "x"), {"token_ids": [1], "logprobs": [float("nan")]}),
    ]:
        with pytest.raises(ValueError, match=r"dialogue|turn|logprobs|JSON"):
            store.add_turn(*arguments, TurnOrigin(**keys))
    assert len(store.turns(dialogue)) == 2


def test_nothing_is_updated_or_deleted(store):
    dialogue, answer = talk(store)
    store.add_feedback(dialogue, ANN, Rating("thumb", turn=answer, value=1))
    with closing(sqlite3.connect(store.path)) as plain:
        for table, column in {"meta": "value", "dialogues": "person", "turns": "text", "feedback": "value"}.items():
            for statement in (f"UPDATE {table} SET {column} = 1", f"DELETE FROM {table}"):
                with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                    plain.execute(statement)
    assert len(store.turns(dialogue)) == 2


def test_a_fifth_of_the_dialogues_is_held_out_by_the_hash_of_its_id(store):
    for _ in range(30):
        store.begin(ANN, "terminal")
    found = store.dialogues()
    assert [one.heldout for one in found] == [
        int(hashlib.sha256(one.id.encode()).hexdigest(), 16) % 5 == 0 for one in found
    ]


def test_what_is_forgotten_is_not_in_the_file(store):
    kept, answer = talk(store, BOB, answer="Outside is fine .")
    store.add_feedback(kept, ANN, Rating("edit", turn=answer, text="an edit that was private"))
    store.add_feedback(kept, BOB, Rating("thumb", turn=answer, value=1))
    gone, answer = talk(store, ANN, answer="a secret of the kitchen " * 300)  # several pages of SQLite
    store.add_feedback(gone, BOB, Rating("thumb", turn=answer, value=-1, text="a reason under it"))
    texts = [b"secret of the kitchen", b"that was private", b"a reason under it", store.hash_person(ANN).encode()]
    assert [text in bytes_on_disk(store) for text in texts] == [True] * 4
    assert store.forget(store.hash_person(ANN)) == 5  # an edit; a dialogue, two turns, and the thumb on it
    assert [text in bytes_on_disk(store) for text in texts] == [False] * 4
    assert b"Outside is fine" in bytes_on_disk(store)
    assert [one.id for one in store.dialogues()] == [kept]
    assert [event.kind for event in store.feedback(newest=False)] == ["thumb"]
    assert store.forget(store.hash_person(ANN)) == 0
    test_nothing_is_updated_or_deleted(store)


def full_talk(store, person=ANN, user=None, secret="c"):
    """A dialogue whose rows are in every table; its id and its answer's."""
    answer = f"{secret * 32:.32}"
    system, hashed = f"You know the secret {secret} .", [store.hash_outside(f"{secret} {one}") for one in range(4)]
    with store.writing():
        dialogue = store.begin(person, "api", system=system, user=user, chat=hashed[0])
        store.add_turn(dialogue, 0, "user", "Hello .", is_copy=True)
        store.add_turn(dialogue, 1, "agent", "Good day .", is_copy=True)
        store.add_turn(dialogue, 2, "user", "Where ?")
        turn = store.add_turn(dialogue, 3, "agent", "In", answer=answer, message=hashed[1], is_stopped=True)
        event = store.add_feedback(dialogue, person, Rating("thumb", turn, 1))
        store.add_request(hashed[2], hashed[3], answer)
    with store.writing() as connection:
        connection.execute("INSERT INTO pulled VALUES (?, ?)", (hashed[3], event))
    return dialogue, turn


def test_what_comes_with_a_dialogue_and_its_turns(store):
    dialogue, turn = full_talk(store, secret="a")
    plain, _ = talk(store)
    assert store.find_answer("a" * 32) == store.turns(dialogue)[-1]
    assert store.find_answer("b" * 32) is None
    assert [store.system(one) for one in (dialogue, plain)] == ["You know the secret a .", None]
    assert store.copies() == {one.id for one in store.turns(dialogue)[:2]}
    assert store.stopped() == {turn}
    outside = [store.hash_outside(f"a {number}") for number in range(4)]
    assert store.find_request(outside[2]) == (outside[3], "a" * 32)
    assert store.find_request(outside[3]) is None
    assert store.rows("SELECT hash FROM messages")[0][0] == outside[1]


def test_ids_that_are_not_hashed_and_copies_that_are_rated_are_refused(store):
    dialogue, _ = full_talk(store)
    count = len(store.turns(dialogue))
    for wrong in ({"message": "a-raw-id"}, {"answer": "chatcmpl-1"}):
        with pytest.raises(ValueError, match="id of an"):
            store.add_turn(dialogue, 4, "agent", "Yes .", **wrong)
    for wrong in ({"user": "ann@example.org"}, {"chat": "a chat"}):
        with pytest.raises(ValueError, match="id of another program"):
            store.begin(ANN, "api", **wrong)
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        store.add_turn(dialogue, 4, "agent", "Yes .", answer=store.rows("SELECT id FROM answers")[0][0])
    assert (len(store.turns(dialogue)), len(store.dialogues())) == (count, 1)  # nothing of it was stored
    copy = store.turns(dialogue)[1]
    with pytest.raises(ValueError, match="copied"):
        store.add_feedback(dialogue, ANN, Rating("thumb", copy.id, 1))


def test_what_is_written_in_one_block_is_stored_together(store):
    dialogue, _ = talk(store)

    def killed():
        with store.writing():
            store.add_turn(dialogue, 2, "user", "And now ?")
            store.add_turn(dialogue, 3, "agent", "Later .", answer="a" * 32)
            with store.writing():
                store.begin(ANN, "api")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed()
    assert (len(store.turns(dialogue)), len(store.dialogues()), store.find_answer("a" * 32)) == (2, 1, None)
    with store.writing():
        store.add_turn(dialogue, 2, "user", "And now ?")
    assert len(store.turns(dialogue)) == 3


def test_a_dialogue_is_on_the_side_of_the_line_that_was_asked_for(store):
    wanted = [True, False] * 6
    ids = [store.begin(ANN, "api", heldout=heldout) for heldout in wanted]
    assert [int(hashlib.sha256(one.encode()).hexdigest(), 16) % 5 == 0 for one in ids] == wanted
    assert [one.heldout for one in store.dialogues()] == wanted


def test_requests_are_remembered_for_a_day_and_the_newest_only(store, monkeypatch):
    monkeypatch.setattr("rlhf_dialog.feedback.store.store.MAX_REQUESTS", 3)
    for key in "abcd":
        store.add_request(key, f"body of {key}", key * 32)
    assert [store.find_request(key) for key in "ad"] == [None, ("body of d", "d" * 32)]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86401)
    assert store.find_request("d") is None
    store.add_request("d", "another body", "e" * 32)
    assert [tuple(row) for row in store.rows("SELECT hash, body FROM requests")] == [("d", "another body")]


@pytest.mark.parametrize("shared", [False, True])
def test_every_table_forgets(store, shared):
    users = [store.hash_outside(name) for name in ("u1", "u2")] if shared else [None, None]
    gone, _ = full_talk(store, ANN, users[0], secret="a")
    kept, _ = full_talk(store, ANN if shared else BOB, users[1], secret="b")
    before = {table: len(store.rows(f"SELECT * FROM {table}")) for table in TABLES}
    assert set(before.values()) == {2, 4, 8}  # of each at least one row of both
    hashes = [store.hash_outside(f"a {number}").encode() for number in range(4)]
    texts = [b"secret a", b"a" * 32, gone.encode(), *hashes, *[one.encode() for one in users[:1] if one]]
    assert [text in bytes_on_disk(store) for text in texts] == [True] * len(texts)
    removed = store.forget(store.hash_person(ANN), users[0])
    assert removed == 6  # a dialogue, four turns and a thumb
    assert [text in bytes_on_disk(store) for text in texts] == [False] * len(texts)
    assert {table: 2 * len(store.rows(f"SELECT * FROM {table}")) for table in TABLES} == before
    assert [one.id for one in store.dialogues()] == [kept]
    assert store.system(kept) == "You know the secret b ."
    assert store.users() == {one for one in users[1:] if one}


TABLES = ["dialogues", "turns", "feedback", "answers", "stopped", "copies", "systems", "chats", "messages", "requests"]
TABLES += ["pulled"]


def test_nothing_of_the_newer_tables_is_updated_or_deleted(store):
    full_talk(store, user="0" * 16)
    with closing(sqlite3.connect(store.path)) as plain:
        for table in [*TABLES, "users"]:
            column = plain.execute(f"SELECT * FROM {table}").description[0][0]
            for statement in (f"UPDATE {table} SET {column} = 1", f"DELETE FROM {table}"):
                if statement != "DELETE FROM requests":  # which are kept for a day
                    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                        plain.execute(statement)


def test_forgetting_while_somebody_reads_says_that_the_bytes_are_still_there(store, monkeypatch):
    monkeypatch.setattr("rlhf_dialog.feedback.store.schema.BUSY_TIMEOUT", 0.05)
    own = Store(store.path)
    talk(own, ANN, answer="a secret of the kitchen")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM turns").fetchone()
        with pytest.raises(UserError, match=r"rows are removed, but .* run forget again"):
            own.forget(own.hash_person(ANN))
        assert own.dialogues() == []
    assert own.forget(own.hash_person(ANN)) == 0
    assert b"kitchen" not in bytes_on_disk(store)
    own.close()


def test_a_backup_while_others_write_is_a_whole_store(store, tmp_path):
    dialogue, answer = talk(store)
    other = Store(store.path)
    with other.writing() as connection:
        connection.execute("INSERT INTO meta VALUES ('later', 'x')")
        store.backup(tmp_path / "copy.sqlite")
    store.add_feedback(dialogue, ANN, Rating("thumb", turn=answer, value=1))
    copy = Store(tmp_path / "copy.sqlite", store.bot)
    assert (copy.turns(dialogue), copy.last_event(), store.last_event()) == (store.turns(dialogue), 0, 1)
    store.backup(tmp_path / "copy.sqlite")
    copy.close()
    assert Store(tmp_path / "copy.sqlite").last_event() == 1
    other.close()


def test_a_full_disk_and_a_file_that_may_not_be_written(store):
    dialogue, answer = talk(store)
    pages = store.rows("PRAGMA page_count")[0][0]
    store.rows(f"PRAGMA max_page_count={pages}")
    with pytest.raises(UserError, match=r"disk is full.* nothing was stored or lost; free some space"):
        store.add_feedback(dialogue, ANN, Rating("edit", turn=answer, text="a long answer " * 5000))
    assert store.feedback() == []
    store.rows("PRAGMA max_page_count=1000000")
    store.add_feedback(dialogue, ANN, Rating("thumb", turn=answer, value=1))
    store.rows("PRAGMA query_only=ON")
    with pytest.raises(UserError, match="permissions"):
        store.begin(ANN, "terminal")


def test_a_disk_that_refuses_the_next_byte_is_full_and_no_backup_is_advised(store, limited_files):
    dialogue, answer = talk(store)
    before = native.export_rows(store)
    limited_files(store.path.stat().st_size + 40_000)
    with pytest.raises(UserError, match="the disk is full") as caught:
        store.add_feedback(dialogue, ANN, Rating("edit", turn=answer, text="a long answer " * 50_000))
    assert "backup" not in str(caught.value)
    store.close()
    limited_files(1000)
    with pytest.raises(UserError, match="the disk is full") as caught:
        Store(store.path)
    assert "backup" not in str(caught.value)
    limited_files(resource.RLIM_INFINITY)
    assert native.export_rows(Store(store.path))[0]["turns"] == before[0]["turns"]


@pytest.fixture
def limited_files():
    """Limits the bytes of every file, which is what a quota does."""
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_who_is_forgotten_on_a_full_disk_is_forgotten_and_the_rest_is_said(store, limited_files):
    talk(store)
    for _ in range(100):
        talk(store, BOB, answer="an answer " * 200)
    store.close()  # nothing is left in the log, which the whole file would have to pass
    limited_files(100_000)
    with pytest.raises(UserError, match=r"rows are removed.*bytes are still in the file.*run forget again"):
        store.forget(store.hash_person(ANN))
    assert store.people() == {store.hash_person(BOB)}
    limited_files(resource.RLIM_INFINITY)
    assert store.forget(store.hash_person(ANN)) == 0
    assert b"Inside , please ." not in bytes_on_disk(store)


def test_times_that_no_date_has_are_read_as_the_nearest_one(store):
    dialogue, answer = talk(store)
    with closing(sqlite3.connect(store.path)) as plain, plain:
        plain.execute(
            "INSERT INTO feedback VALUES (NULL, ?, ?, 'thumb', 1, NULL, NULL, 'p', 9e999)", (dialogue, answer)
        )
        plain.execute("INSERT INTO dialogues VALUES ('x', -9e999, 'p', 'page', 0)")
        plain.execute("INSERT INTO turns VALUES (NULL, 'x', 0, 'user', 'Hi', NULL, NULL, NULL, NULL, 1e300)")
    rows = native.export_rows(store)
    json.dumps(rows, allow_nan=False)
    assert [row["dialogue"]["started"] for row in rows][1] == 0
    latest = {rows[0]["feedback"][0]["created"], rows[1]["turns"][0]["created"]}
    assert {time.gmtime(one).tm_year for one in latest} == {9999}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("token_ids", text) for text in ('["a"]', "5", b"x", '{"a": 1}', "[1.5]", "[[1]]", "[true]")),
        *(("logprobs", text) for text in ('["a"]', "[NaN]", "[1e999]", "[-1e999]", '"ab"', "[800]")),
        *(("sampling", text) for text in ("[1]", '{"temperature": "x"}', '{"top_p": [1]}', "3")),
    ],
)
def test_what_an_answer_was_sampled_from_is_checked(store, column, value):
    dialogue = store.begin(ANN, "terminal")
    row = {"dialogue": dialogue, "position": 0, "speaker": "agent", "text": "Yes .", "created": 1.0, column: value}
    with closing(sqlite3.connect(store.path)) as plain, plain:
        names = ", ".join(row)
        plain.execute(f"INSERT INTO turns ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
    with pytest.raises(UserError, match=r"turn 1 is damaged \("):
        store.turns(dialogue)


def test_a_damaged_column_is_named_and_a_damaged_file_is_refused(store):
    dialogue = store.begin(ANN, "terminal")
    turn = store.add_turn(dialogue, 0, "agent", "Two streets .")
    with closing(sqlite3.connect(store.path)) as plain, plain:
        for (name,) in plain.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            plain.execute(f"DROP TRIGGER {name}")  # they allow no update
        plain.execute("UPDATE turns SET token_ids = '[1,' WHERE id = ?", (turn,))
    with pytest.raises(UserError, match=rf"turn {turn} is damaged \(.*\); put a backup in its place"):
        store.turns(dialogue)
    for _ in range(30):
        talk(store, answer="an answer " * 200)
    store.close()
    content = store.path.read_bytes()
    store.path.write_bytes(content[:4096] + bytes(8192) + content[12288:])
    with pytest.raises(UserError, match=r"feedback.sqlite: .*malformed; put a backup in its place"):
        Store(store.path).check()
