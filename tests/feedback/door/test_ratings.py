"""What people think of an answer, as the API takes it, against the store."""

import json
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette", reason="the API needs the extra chat")

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.door.callers import UNKNOWN, Caller
from rlhf_dialog.feedback.door.ratings import forget, rate, withdraw
from rlhf_dialog.feedback.door.requests import ApiError
from rlhf_dialog.feedback.sessions.chat_session import ChatSession
from rlhf_dialog.feedback.store.examples import read_examples, turns_before
from rlhf_dialog.feedback.store.store import Rating, Store
from tests.parts.bots import new_version

ANN, BEN, TEACHER = Caller("ann", None, "user"), Caller("ben", None, "user"), Caller("teacher", None, "teacher")
OWNER = Caller("ann", None, "owner")
ANSWERING = SimpleNamespace(begin=lambda: "0001", end=lambda version: None, spoken=lambda text, version: text)
U1, U2 = "1" * 16, "2" * 16  # hashes of a gateway's users


def user_of_gateway(user):
    return Caller(UNKNOWN, user, "gateway")


def say(store, caller, *answers, dialogue=None, asked="Is it far ?", **marks):
    """Store a question with its answers; returns the dialogue and the ids that clients have."""
    dialogue = dialogue or store.begin(caller.person, "api", user=caller.user)
    position = 1 + max((turn.position for turn in store.turns(dialogue)), default=-1)
    store.add_turn(dialogue, position, "user", asked)
    ids = [f"{len(store.rows('SELECT 1 FROM turns')):032x}{end}" for end in ("", "-1", "-2")[: len(answers)]]
    for number, text in zip(ids, answers, strict=True):
        store.add_turn(dialogue, position + 1, "agent", text, answer=number, **marks)
    return dialogue, [f"chatcmpl-{number}" for number in ids]


def spoken(text):
    return text.replace("<EOU>", " ").strip()


def send(store, caller, answer, **body):
    return rate(store, caller, {"id": answer, **body}, 100, spoken)["added"]


def refusal(act, *args, **body):
    with pytest.raises(ApiError) as caught:
        act(*args, **body)
    return caught.value


def rows(store, newest=False):
    return [(one.kind, one.turn, one.value, one.text, one.other) for one in store.feedback(newest=newest)]


@pytest.fixture
def store(tmp_path):
    store = Store.create(tmp_path / "feedback.sqlite")
    yield store
    store.close()


@pytest.fixture
def answers(store):
    """The ids of two answers to one question of Ann's: turns 2 and 3."""
    return say(store, ANN, "Two streets .", "Yes .")[1]


def test_each_kind_is_the_event_that_page_and_terminal_store(store, answers):
    first, second = answers
    assert send(store, ANN, first, thumb="down", reason=" too\r\nshort ") == 1
    assert send(store, ANN, first, correction="Two streets<EOU> away .\n") == 1
    assert send(store, ANN, second, score=4) == 1
    assert send(store, ANN, second, preferred=first) == 1  # Ann has corrected it: her own text is better
    assert rows(store) == [
        ("thumb", 2, -1, "too\nshort", None),
        ("edit", 2, None, "Two streets  away .", None),
        ("score", 3, 4, None, None),
        ("edit", 3, None, "Two streets  away .", None),
    ]
    assert {one.person for one in store.feedback()} == {store.hash_person("ann")}
    _, (one, other) = say(store, ANN, "Left .", "Right .")
    assert send(store, ANN, one, preferred=other) == 1
    assert rows(store)[-1] == ("choice", 6, None, None, 5)
    assert send(store, ANN, one, thumb="down", correction="Straight on .") == 2


SENSELESS = {  # what is sent -> what the refusal names
    "rating": ({"rating": 1}, ("both", "thumb", "score", "up")),
    "rating and thumb": ({"rating": 1, "thumb": "up"}, ("both", "thumb", "score")),
    "nothing": ({}, ("thumb", "score", "correction", "preferred")),
    "null": ({"thumb": None}, ("thumb", "score", "correction", "preferred")),
    "another key": ({"thumb": "up", "comment": "Good"}, ("comment", "not permitted")),
    "half a character": ({"\ud800": 1}, ("the body",)),
    "thumb 1": ({"thumb": 1}, ("thumb", "up", "down")),
    "thumb good": ({"thumb": "good"}, ("thumb", "up", "down")),
    "thumb list": ({"thumb": ["up"]}, ("thumb", "up", "down")),
    **{f"score {value!r}": ({"score": value}, ("score",)) for value in (0, 6, 4.0, "4", True, -1)},
    "reason alone": ({"reason": "Good"}, ("reason", "thumb")),
    "reason of a score": ({"reason": "Good", "score": 5}, ("reason", "thumb")),
    "reason 1": ({"reason": 1, "thumb": "up"}, ("reason", "string")),
    "thumb and score": ({"thumb": "up", "score": 5}, ("thumb", "score", "one")),
    "two texts": ({"correction": "A", "preferred": "second"}, ("correction", "preferred", "one")),
    "thumb of two": ({"thumb": "up", "preferred": "second"}, ("thumb", "two")),
    "score of two": ({"score": 1, "preferred": "second"}, ("score", "two")),
    "no correction": ({"correction": " <EOU>\n"}, ("correction", "empty")),
    "the same": ({"correction": " Two streets .\r\n"}, ("correction", "answer")),
    "long": ({"correction": "a" * 101}, ("correction", "101", "100", "api_rating_chars")),
    "long reason": ({"thumb": "up", "reason": "a" * 101}, ("reason", "101", "100")),
    "itself": ({"preferred": "first"}, ("preferred", "id")),
    "another message": ({"preferred": "later"}, ("preferred", "message")),
    "another dialogue": ({"preferred": "elsewhere"}, ("preferred", "message")),
    "preferred 1": ({"preferred": 1}, ("preferred", "string")),
    "no id": ({"id": None, "thumb": "up"}, ("id", "string")),
    "id 1": ({"id": 1, "thumb": "up"}, ("id", "string")),
}


@pytest.mark.parametrize(("body", "words"), SENSELESS.values(), ids=list(SENSELESS))
def test_what_makes_no_sense_is_refused_with_what_to_do(store, body, words):
    dialogue, (first, second) = say(store, ANN, "Two streets .", "Yes .")
    named = {"first": first, "second": second, "later": say(store, ANN, "Left .", dialogue=dialogue)[1][0]}
    named["elsewhere"] = say(store, ANN, "Right .")[1][0]
    body = {"id": first, **body}
    if isinstance(body.get("preferred"), str):
        body["preferred"] = named[body["preferred"]]
    error = refusal(rate, store, ANN, body, 100, spoken)
    assert error.status == 400
    assert all(word in error.message for word in words)
    json.dumps(error.body, ensure_ascii=False).encode()  # as it is sent
    assert rows(store) == []
    assert refusal(rate, store, ANN, [first], 100, spoken).status == 400


def test_the_same_again_adds_nothing_and_what_changed_is_new(store, answers):
    first, second = answers
    added = [
        *(send(store, ANN, first, thumb="up") for _ in range(2)),
        *(send(store, ANN, first, thumb="up", reason=text) for text in ("short", "short ", "true")),
        send(store, ANN, first, thumb="up"),  # without a reason now
        *(send(store, ANN, first, thumb="down") for _ in range(2)),
        *(send(store, ANN, first, score=value) for value in (2, 2, 3)),
        *(send(store, ANN, first, thumb="down") for _ in range(2)),  # newer than the score again
        *(send(store, ANN, second, preferred=first) for _ in range(2)),
        *(send(store, ANN, first, preferred=second) for _ in range(2)),
        *(send(store, ANN, first, thumb="down", correction=text) for text in ("A", "A", "B")),
    ]
    assert added == [1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert send(store, TEACHER, first, thumb="down") == 1  # of another person
    assert [(one.kind, one.liked) for one in read_examples(store).answers] == [("thumb", False)] * 2


def test_an_older_edit_or_choice_again_is_new_when_the_dialogue_goes_on_with_another_text(store, answers):
    first, second = answers
    added = [
        send(store, ANN, first, correction="A"),
        send(store, ANN, first, preferred=second),
        send(store, ANN, first, correction="A"),
        send(store, ANN, first, correction="A"),
    ]
    assert added == [1, 1, 1, 0]
    later = say(store, ANN, "Left .", dialogue=store.dialogues()[0].id)[1][0]
    assert [send(store, ANN, later, correction="B"), send(store, ANN, first, correction="A")] == [1, 0]
    third = f"chatcmpl-{'c' * 32}"
    store.add_turn(store.dialogues()[0].id, 1, "agent", "No .", answer="c" * 32)
    for other, wanted in ((first, 1), (third, 1), (first, 0), (third, 0)):  # both go on with the second one
        assert send(store, ANN, other, preferred=second) == wanted


def test_two_requests_at_once_add_one_event(store, answers):
    added, barrier = [], threading.Barrier(4)

    def work():
        barrier.wait()
        added.append(send(store, ANN, answers[0], thumb="up", correction="A"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(added) == [0, 0, 0, 2]


def test_all_of_a_persons_feedback_on_an_answer_is_taken_back_and_given_again(store, answers):
    first, second = answers
    store.add_turn(store.dialogues()[0].id, 1, "agent", "No .", answer="c" * 32)
    bodies = ({"thumb": "down", "correction": "A"}, {"preferred": second})
    for body in bodies:
        assert send(store, ANN, first, **body) == len(body)
    send(store, ANN, f"chatcmpl-{'c' * 32}", preferred=second)
    send(store, TEACHER, first, score=2)
    reply = withdraw(store, ANN, first)
    assert (reply["id"], reply["deleted"], reply["withdrawn"]) == (first, True, 3)
    assert rows(store, newest=True) == [("choice", 3, None, None, 4), ("score", 2, 2, None, None)]
    assert withdraw(store, ANN, first)["withdrawn"] == 0
    for body in bodies:
        assert send(store, ANN, first, **body) == len(body)
    assert withdraw(store, ANN, second)["withdrawn"] == 2  # choices of it are feedback on it
    assert [row[0] for row in rows(store, newest=True)] == ["score", "thumb", "edit"]


def test_what_a_person_has_corrected_is_not_rated_as_the_bots(store, answers):
    assert send(store, ANN, answers[0], thumb="down", correction="A") == 2
    for body in ({"thumb": "up"}, {"score": 5}):
        error = refusal(send, store, ANN, answers[0], **body)
        assert (error.status, "DELETE" in error.message) == (400, True)
    assert send(store, ANN, answers[0], thumb="down") == 0  # a request that is sent again
    assert send(store, ANN, answers[0], thumb="up", correction="A") == 1  # the thumb is for the bot's
    assert send(store, TEACHER, answers[0], thumb="up") == 1
    withdraw(store, ANN, answers[0])
    assert send(store, ANN, answers[0], thumb="up") == 1


def test_everybody_rates_their_own_answers_and_teachers_all(store):
    """Anything else is one and the same 404: it is not told whether such an answer exists."""
    first, second = user_of_gateway(U1), user_of_gateway(U2)
    callers = {"ann": ANN, "ben": BEN, "u1": first, "u2": second, "visitor": Caller(UNKNOWN, None, "visitor")}
    answers = {name: say(store, caller, "Two streets .", "Yes .")[1] for name, caller in callers.items()}
    by_user = say(store, Caller("ann", U1, "owner"), "Two streets .")[1][0]
    bodies = []
    for name, (answer, alternative) in answers.items():
        for other, caller in (*callers.items(), ("ann", OWNER), ("any", user_of_gateway(None))):
            if name == other or {name, other} == {"visitor", "any"}:  # neither says who they are
                send(store, caller, answer, thumb="up")
                withdraw(store, caller, answer)
                continue
            acts = [(send, (store, caller, answer), {"thumb": "up"}), (withdraw, (store, caller, answer), {})]
            if other in answers:
                acts.append((send, (store, caller, answers[other][0]), {"preferred": alternative}))
            bodies += [
                (error.status, error.body) for act, args, body in acts for error in [refusal(act, *args, **body)]
            ]
        assert send(store, TEACHER, answer, score=5) == 1
    for name in ("chatcmpl-" + "f" * 32, "f" * 32, "", "chatcmpl-\ud800", "1", answers["ann"][0] + "-1-1", "' OR 1"):
        for act, body in ((send, {"thumb": "up"}), (withdraw, {})):
            error = refusal(act, store, TEACHER, name, **body)
            bodies.append((error.status, error.body))
    assert {status for status, _ in bodies} == {404}
    assert len({json.dumps(body) for _, body in bodies}) == 1
    assert send(store, OWNER, by_user, thumb="up") == 1  # one person, whichever users their program names


def test_a_copied_turn_is_nobodys_answer(store):
    _, (copied,) = say(store, ANN, "Two streets .", is_copy=True)
    for caller in (ANN, TEACHER):
        assert refusal(send, store, caller, copied, thumb="up").status == 404
    _, (stopped,) = say(store, ANN, "Two", is_stopped=True)
    assert send(store, ANN, stopped, thumb="up") == 1


def texts_until_now(store, dialogue):
    """What the next answer's prompt would be, as the night reads it."""
    turns = store.rows("SELECT * FROM turns WHERE dialogue = ? ORDER BY position, id", (dialogue,))
    events = store.rows("SELECT * FROM feedback WHERE dialogue = ? ORDER BY id", (dialogue,))
    length = 1 + max(turn["position"] for turn in turns)
    return turns_before(turns, {"id": 1 << 60, "created": 1e18, "position": length}, events)


def test_night_and_chat_go_on_with_what_was_corrected_or_preferred_last(store):
    dialogue, (first, second) = say(store, ANN, "Two streets .", "Yes .")
    for act, said in (
        (lambda: send(store, ANN, first, correction="Two blocks ."), "Two blocks ."),
        (lambda: send(store, ANN, first, thumb="down", correction="One block ."), "One block ."),
        (lambda: send(store, ANN, first, preferred=second), "Yes ."),
        (lambda: send(store, ANN, first, correction="One block ."), "One block ."),
        (lambda: withdraw(store, ANN, first), "Yes ."),  # written last
        (lambda: send(store, ANN, second, preferred=first), "Two streets ."),
    ):
        act()
        assert texts_until_now(store, dialogue) == ("Is it far ?", said)
        talk = ChatSession.reopen(store, ANSWERING, "ann", "page", dialogue)
        assert [talk.texts[0], talk.texts[1]] == ["Is it far ?", said]


def test_an_open_page_sees_that_a_correction_was_taken_back(store):
    dialogue, (first,) = say(store, ANN, "Two streets .")
    send(store, ANN, first, correction="Two blocks .")
    talk = ChatSession.reopen(store, ANSWERING, "ann", "page", dialogue)
    before = talk.state
    withdraw(store, ANN, first)
    again = ChatSession.reopen(store, ANSWERING, "ann", "page", dialogue)
    assert again.state != before
    again.edit("Three .", turn=again.turns[1].id)
    again.withdraw("edit", turn=again.turns[1].id)
    assert again.texts[1] == "Two streets ."
    assert again._has_changed() is False


CONFIRM = {"confirm": "forget"}


def test_who_has_a_key_is_forgotten_and_a_gateways_user_alone(bot):
    with_store = bot.store()
    first, second = user_of_gateway(U1), user_of_gateway(U2)
    ids = {
        caller: say(with_store, caller, f"words of {number}")[1][0]
        for number, caller in enumerate((ANN, BEN, first, second))
    }
    for caller, answer in ids.items():
        send(with_store, caller, answer, thumb="up")
    version = new_version(bot)
    for caller, number in ((ANN, 0), (first, 2)):
        reply = forget(bot, with_store, caller, CONFIRM)
        assert (reply["deleted"], reply["rows"]) == (True, 4)  # a dialogue, two turns, a thumb
        assert refusal(send, with_store, caller, ids[caller], thumb="up").status == 404
        assert f"words of {number}".encode() not in bot.store_path.read_bytes()
    assert bot.versions() == ["0001", version]
    assert [send(with_store, caller, ids[caller], thumb="up") for caller in (BEN, second)] == [0, 0]
    with_store.close()


@pytest.mark.parametrize(
    ("caller", "body", "status", "word"),
    [
        (ANN, {}, 400, "confirm"),
        (ANN, {"confirm": True}, 400, "forget"),
        (ANN, None, 400, "confirm"),
        (OWNER, CONFIRM, 401, "key"),
        (Caller(UNKNOWN, None, "visitor"), CONFIRM, 401, "key"),
        (user_of_gateway(None), CONFIRM, 400, "user"),
    ],
    ids=str,
)
def test_nobody_else_is_forgotten(store, caller, body, status, word):
    """A gateway that names no user would else remove every visitor and every unknown user."""
    for one in (ANN, user_of_gateway(U1), user_of_gateway(None)):
        say(store, one, "Two streets .")
    error = refusal(forget, None, store, caller, body)
    assert error.status == status
    assert word in error.message
    assert len(store.dialogues()) == 3


def test_a_store_that_is_read_meanwhile_keeps_the_bytes_and_says_so(bot, monkeypatch):
    monkeypatch.setattr("rlhf_dialog.feedback.store.schema.BUSY_TIMEOUT", 0.01)
    store, other = bot.store(), bot.store()
    dialogue, (answer,) = say(store, ANN, "words of Ann")
    store.add_feedback(dialogue, "ann", Rating("thumb", store.find_answer(answer.removeprefix("chatcmpl-")).id, 1))
    with other.reading():
        assert other.rows("SELECT count(*) FROM turns")[0][0] == 2
        with pytest.raises(UserError, match="run forget again"):
            forget(bot, store, ANN, CONFIRM)
    assert forget(bot, store, ANN, CONFIRM)["rows"] == 0
    assert b"words of Ann" not in bot.store_path.read_bytes()
    for one in (store, other):
        one.close()
