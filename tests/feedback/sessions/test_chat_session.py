"""One person's dialogue: what is shown, what the dialogue goes on with, and what is on disk afterwards."""

import math
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.sessions.batched_generation import Answering
from rlhf_dialog.feedback.sessions.chat_session import ChatSession, SessionChanged
from rlhf_dialog.feedback.store import schema
from tests.parts.bots import rows


def said(talk: ChatSession, text: str) -> str:
    *_, answer = talk.say(text)
    return answer


def test_a_dialogue_is_on_disk_after_each_answer(store, talk, answering):
    assert store.dialogues() == []  # nothing before somebody speaks
    pieces = list(talk.say("Hello <EOU>"))
    assert all(late.startswith(early) for early, late in pairwise(pieces))
    assert talk.last.text == pieces[-1]
    said(talk, "And then ?")
    (dialogue,) = store.dialogues()
    assert (dialogue.id, dialogue.person, dialogue.source) == (talk.dialogue, store.hash_person("somebody"), "terminal")
    turns = store.turns(talk.dialogue)
    assert [(turn.position, turn.speaker) for turn in turns] == [(0, "user"), (1, "agent"), (2, "user"), (3, "agent")]
    assert [turns[0].text, turns[2].text] == ["Hello", "And then ?"]
    assert turns[0].token_ids is None
    answer = turns[1]
    assert (answer.text, answer.version, answer.id) == (pieces[-1], "0001", talk.turns[1].id)
    assert answer.sampling.keys() >= {"temperature", "top_k", "top_p", "max_new_tokens", "seed"}
    *_, again = answering.stream(["Hello"], "0001", answer.sampling["seed"])
    assert (answer.token_ids, answer.logprobs) == (list(again.ids), list(again.logprobs))
    for _ in range(2):  # a second call changes nothing
        talk.end()
    assert answering._served._holders.total() == 0


def test_an_earlier_answer_can_be_rated_and_the_rating_taken_back(bot, talk):
    said(talk, "Hello")
    early = talk.last.id
    said(talk, "And ?")
    talk.thumb(True, turn=early)
    talk.score(1)
    talk.score_dialogue(5)
    assert talk.ratings() == {early: {"thumb": 1.0}, talk.last.id: {"score": 1.0}, None: {"dialogue_score": 5.0}}
    talk.withdraw("thumb", turn=early)
    assert talk.ratings() == {talk.last.id: {"score": 1.0}, None: {"dialogue_score": 5.0}}
    with pytest.raises(UserError, match="no such answer"):
        talk.thumb(True, turn=talk.turns[0].id)  # what the person said


def test_what_cannot_be_rated(bot, talk):
    acts = [lambda: talk.thumb(True), lambda: talk.score(3), lambda: talk.edit("x"), lambda: talk.score_dialogue(3)]
    for act in (*acts, lambda: list(talk.again()), lambda: talk.choose(1), talk.why):
        with pytest.raises(UserError, match="say something first"):
            act()
    with pytest.raises(UserError, match="nothing to answer"):
        talk.say(" <EOU> ")
    answer = said(talk, "Hello")
    for value in (0, 6, 2.5, -1, None):
        with pytest.raises(UserError, match="1, 2, 3, 4 or 5"):
            talk.score(value)
    for text in ("", "  ", "<EOU>", *([answer] if answer else [])):
        with pytest.raises(UserError, match="empty or the same"):
            talk.edit(text)
    list(talk.again())
    for number in (0, 3, -1):
        with pytest.raises(UserError, match=f"choose 1 to 2, not {number}"):
            talk.choose(number)
    assert rows(bot) == []


@pytest.fixture
def asked(monkeypatch, answering) -> list[list[str]]:
    """The turns that are answered."""
    asked, stream = [], answering.stream

    def seen(turns, version, seed=None):
        asked.append(list(turns))
        return stream(turns, version, seed)

    monkeypatch.setattr(answering, "stream", seen)
    return asked


def test_the_dialogue_goes_on_with_the_chosen_answer_or_the_edited_one(bot, talk, asked):
    first = said(talk, "Hello")
    list(talk.again())
    *_, third = talk.again()
    assert rows(bot, "SELECT position, speaker FROM turns") == [(0, "user"), *[(1, "agent")] * 3]
    assert talk.texts[1] == third  # the newest, unless another one is chosen
    ids = [turn.id for turn in talk.alternatives()]
    talk.choose(1)
    assert talk.last.id == ids[0]
    said(talk, "Go on")
    with pytest.raises(UserError, match="only one answer"):
        talk.choose(1)
    talk.edit(" Good <EOU> morning ")
    choices = [("choice", ids[0], None, None, other) for other in ids[1:]]
    assert rows(bot) == [*choices, ("edit", talk.last.id, None, "Good morning", None)]
    said(talk, "Well<eos>")  # nor does a special token that ends no turn reach the model
    assert asked[-2:] == [["Hello", first, "Go on"], ["Hello", first, "Go on", "Good morning", "Well"]]


def test_what_a_person_wrote_is_not_rated_as_the_bot_s_answer(bot, talk):
    said(talk, "Hello")
    talk.thumb(False)  # the bot's own
    talk.edit("Better")
    for rate in (lambda: talk.thumb(True), lambda: talk.score(5), lambda: talk.thumb(False, turn=talk.last.id)):
        with pytest.raises(UserError, match="you wrote this answer, and your edit says already that it is better"):
            rate()
    talk.score_dialogue(4)
    talk.withdraw("thumb")
    assert [row[0] for row in rows(bot)] == ["thumb", "edit", "dialogue_score", "withdrawn"]
    talk.withdraw("edit")
    talk.score(1)  # of the bot's own answer again
    said(talk, "And ?")
    talk.thumb(True)


@pytest.mark.parametrize("chosen", [1, 2])
def test_an_edited_answer_against_another_one(bot, talk, store, answering, asked, chosen):
    """Preferred, its better text is an edit of the other one; else it is a choice."""
    said(talk, "Hello")
    talk.edit("Better")
    *_, new = talk.again()
    talk.choose(chosen)
    first, second = (turn.id for turn in talk.alternatives())
    kept = ("edit", second, None, "Better", None) if chosen == 1 else ("choice", second, None, None, first)
    assert rows(bot)[1:] == [kept]
    text = "Better" if chosen == 1 else new
    assert ChatSession.reopen(store, answering, "somebody", "page", talk.dialogue).texts == {0: "Hello", 1: text}
    said(talk, "Go on")
    assert asked[-1] == ["Hello", text, "Go on"]


@pytest.mark.parametrize("greedy", [True, False])
def test_the_same_answer_again_is_said_and_not_stored(bot, store, greedy):
    def adjust(agent):
        agent.sampling = replace(agent.sampling, greedy=greedy, top_k=0 if greedy else 1)

    with Answering(bot, seed=0, adjust=adjust) as answering:
        talk = ChatSession(store, answering, "somebody", "terminal")
        answer = said(talk, "Hello")
        with pytest.raises(UserError, match="most likely word each time" if greedy else "the same answer again"):
            list(talk.again())
        assert [turn.text for turn in talk.alternatives()] == [answer]
        assert len(rows(bot, "SELECT id FROM turns")) == 2
        talk.thumb(True)


def test_what_is_given_up_leaves_no_trace(bot, talk):
    answers = talk.say("Hello")
    next(answers)
    answers.close()
    assert (talk.turns, talk.texts, talk.last) == ([], {}, None)
    assert rows(bot, "SELECT * FROM dialogues") == []
    said(talk, "Hi")
    assert [turn.text for turn in talk.turns if turn.speaker == "user"] == ["Hi"]


@contextmanager
def locked(bot):
    with closing(sqlite3.connect(bot.store_path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def test_a_locked_store_does_not_hide_the_answer_which_is_stored_with_the_next_one(bot, store, talk, monkeypatch):
    monkeypatch.setattr(schema, "BUSY_TIMEOUT", 0.01)
    store.close()  # the next connection waits so long
    with locked(bot):
        answer = said(talk, "one")
        assert talk.last.text == answer
        assert talk.problem.startswith("this dialogue is not stored, so it cannot be rated: ")
        with pytest.raises(UserError, match=r"cannot be rated: .*feedback.sqlite: .*locked.* try again"):
            talk.thumb(True)
        list(talk.again())
    assert rows(bot, "SELECT * FROM turns") == []
    said(talk, "two")
    assert talk.problem is None
    stored = rows(bot, "SELECT position, speaker FROM turns ORDER BY id")
    assert stored == [(0, "user"), (1, "agent"), (1, "agent"), (2, "user"), (3, "agent")]
    with locked(bot), pytest.raises(UserError, match=r"your feedback was not stored: .*locked"):
        talk.score(5)
    talk.thumb(True)
    assert rows(bot) == [("thumb", talk.last.id, 1.0, None, None)]


def test_a_dialogue_that_was_forgotten_elsewhere(bot, store, talk):
    said(talk, "Hello")
    bot.forget(store.hash_person("somebody"))
    with pytest.raises(UserError, match="no longer in the store; begin a new one"):
        talk.thumb(True)
    said(talk, "Still there ?")
    assert "no longer in the store" in talk.problem
    assert rows(bot, "SELECT * FROM turns") == []


def test_why(talk):
    said(talk, "Hello")
    logprobs = talk.last.logprobs
    mean, rarest = math.exp(sum(logprobs) / len(logprobs)), math.exp(min(logprobs))
    text = talk.why()
    assert text.startswith("Version 0001 answered, drawing its words at temperature 1.")
    assert [word for word in (f"{len(logprobs)} tokens", f"{mean:.1%}", f"{rarest:.1%}") if word not in text] == []
    talk.last = replace(talk.last, logprobs=None)  # as of an import
    assert "not known" in talk.why()


def test_a_dialogue_is_opened_again_with_its_ratings(bot, store, answering, talk):
    first = said(talk, "Hello")
    list(talk.again())
    talk.choose(1)
    said(talk, "And ?")
    talk.thumb(True)
    talk.edit("A better answer")
    again = ChatSession.reopen(store, answering, "somebody", "page", talk.dialogue)
    assert again.turns == store.turns(talk.dialogue)
    assert again.texts == {0: "Hello", 1: first, 2: "And ?", 3: "A better answer"}
    assert again.ratings() == talk.ratings()
    assert again.ratings()[again.last.id] == {"edit": "A better answer", "thumb": 1.0}
    said(again, "More")
    assert len(store.dialogues()) == 1
    # the last answer stays the last one, though an older one was edited later; a newer answer follows a choice
    list(again.again())
    again.choose(1)
    list(again.again())
    again.edit("Better", turn=talk.last.id)
    third = ChatSession.reopen(store, answering, "somebody", "page", talk.dialogue)
    assert (third.last.id, third.texts) == (again.last.id, again.texts)
    for person, dialogue in (("somebody else", talk.dialogue), ("somebody", "f" * 32)):
        with pytest.raises(UserError, match="no such dialogue"):
            ChatSession.reopen(store, answering, person, "page", dialogue)


def test_a_dialogue_that_went_on_in_another_tab(bot, store, answering, talk):
    """Two messages at one place would make one answer look like another one to the other message."""
    said(talk, "Hello")
    other = ChatSession.reopen(store, answering, "somebody", "page", talk.dialogue)
    assert other.state == talk.state
    said(other, "And ?")
    assert other.state != talk.state
    acts = [lambda: said(talk, "Well"), lambda: list(talk.again()), lambda: talk.thumb(True), lambda: talk.edit("x")]
    for act in acts:
        with pytest.raises(SessionChanged, match="gone on in another tab"):
            act()
    assert rows(bot, "SELECT position FROM turns ORDER BY id") == [(0,), (1,), (2,), (3,)]
    assert rows(bot) == []
    again = ChatSession.reopen(store, answering, "somebody", "page", talk.dialogue)
    other.edit("Better")
    with pytest.raises(SessionChanged):
        said(again, "More")
    said(other, "More")
    other.thumb(True)
    assert other.problem is None
    again = ChatSession.reopen(store, answering, "somebody", "page", talk.dialogue)
    growing = again.say("Well")
    next(growing)
    said(other, "Meanwhile")
    list(growing)
    assert "another tab" in again.problem
    assert rows(bot, "SELECT text FROM turns WHERE position = 6") == [("Meanwhile",)]


def test_without_a_store_there_is_talk_but_no_feedback(chat_agent):
    with Answering(chat_agent, seed=0) as answering:
        talk = ChatSession(None, answering, "somebody", "terminal")
        said(talk, "Hello")
        *_, second = talk.again()
        assert (talk.last.text, talk.problem, talk.ratings()) == (second, None, {})
        assert talk.why().startswith("The agent answered")
        for rate in (lambda: talk.thumb(True), lambda: talk.score(4), lambda: talk.edit("x"), lambda: talk.choose(1)):
            with pytest.raises(UserError, match="feedback init"):
                rate()
        with pytest.raises(UserError, match="stores nothing"):
            talk.forget()


def test_a_store_that_is_replaced_in_the_middle_takes_no_feedback(bot, store, talk):
    """SQLite would write into the file that has no name any more."""
    said(talk, "Hello")
    store.backup(bot.folder / "backup.sqlite")
    (bot.folder / "backup.sqlite").replace(bot.store_path)
    with pytest.raises(UserError, match=r"feedback.sqlite: was removed or replaced while this program used it"):
        talk.thumb(True)
    said(talk, "And ?")
    assert "was removed or replaced" in talk.problem
