"""What the page's buttons do, called as Gradio calls them; tests/whole_runs/test_page_in_browser.py uses them in a browser."""

import sqlite3
from itertools import pairwise
from types import SimpleNamespace

import pytest

pytest.importorskip("gradio", reason="the page needs gradio")

import gradio as gr

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback import schema
from rlhf_dialog.feedback.answering import Answering
from rlhf_dialog.feedback.limits import Limits
from rlhf_dialog.feedback.page import Page
from rlhf_dialog.feedback.shown import as_text

PERSON = "ab" * 16
CHAT, DIALOGUE, COMPARE, SCORE, WHOLE, EARLIER, WHO, NOTE = range(8)


@pytest.fixture
def page(bot):
    store = bot.store()
    with Answering(bot, seed=0) as answering:
        yield Page(store, answering, "bot", limits=Limits(message_chars=50, messages=(6, 100)))
    store.close()


@pytest.fixture
def request_(page):
    return request_of(page)


def request_of(page, person=PERSON, tab="tab"):
    return SimpleNamespace(cookies={page.app.cookie: person} if person else {}, session_hash=tab)


def said(page, request, text="Hello", dialogue=""):
    """The box, and the view after the answer."""
    *_, (box, *view) = page.say(text, dialogue, request)
    return box, view


def thumb(page, request, dialogue, liked, index=1):
    return page.thumb(dialogue, request, gr.LikeData(None, {"index": index, "value": ["x"], "liked": liked}))


def edit(page, request, dialogue, text):
    """Whether the editor stays open, and the view."""
    editor, *view = page.edit(text, dialogue, request)
    return editor["visible"] if isinstance(editor, dict) else editor.visible, view


def rows(bot, statement):
    connection = sqlite3.connect(bot.store_path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


FEEDBACK = "SELECT kind, turn, value, text, other FROM feedback ORDER BY id"


def test_an_answer_grows_and_is_stored(bot, page, request_):
    views = list(page.say("Hello", "", request_))
    assert len(views) > 2
    grown = [view[1 + CHAT][-1]["content"] for view in views[:-1]]
    assert all(late.startswith(early) for early, late in pairwise(grown))
    assert views[0][1 + CHAT][0] == {"role": "user", "content": "Hello"}
    box, *view = views[-1]
    assert grown[-1] == as_text(page.talks._open[PERSON, "tab"].talk.last.text)
    assert (box, view[WHO], view[NOTE]) == ("", "Version 0001 answers.", "")
    assert rows(bot, "SELECT id, source FROM dialogues") == [(view[DIALOGUE], "page")]
    assert rows(bot, "SELECT speaker, text FROM turns") == [
        ("user", "Hello"),
        ("agent", page.talks._open[PERSON, "tab"].talk.last.text),
    ]


def test_ratings_are_stored(bot, page, request_):
    dialogue = said(page, request_)[1][DIALOGUE]
    assert "you like this answer" in thumb(page, request_, dialogue, True)[NOTE]
    thumb(page, request_, dialogue, "Unkind")
    thumb(page, request_, dialogue, "Unkind")  # as Gradio does
    assert "taken back" in thumb(page, request_, dialogue, "")[NOTE]
    *_, view = page.again(dialogue, request_)
    assert view[COMPARE]["visible"] if isinstance(view[COMPARE], dict) else view[COMPARE].visible
    assert "Say first which" in [*page.again(dialogue, request_)][-1][NOTE]
    page.choose_first(dialogue, request_)
    assert page.draft(dialogue, request_)[1:] == [rows(bot, "SELECT text FROM turns WHERE id = 2")[0][0], ""]
    assert edit(page, request_, dialogue, "Better")[0] is False
    page.score(4, dialogue, request_)
    page.score_dialogue(5, dialogue, request_)
    assert rows(bot, FEEDBACK) == [
        ("thumb", 2, 1.0, None, None),
        ("thumb", 2, -1.0, "Unkind", None),
        ("withdrawn", 2, None, "thumb", None),
        ("choice", 2, None, None, 3),
        ("edit", 2, None, "Better", None),
        ("score", 2, 4.0, None, None),
        ("dialogue_score", None, 5.0, None, None),
    ]
    assert page.why(dialogue, request_)[NOTE].startswith('<p role="status">Version 0001 answered')


def test_a_dialogue_is_opened_again_by_its_person_alone(bot, page, request_):
    dialogue = said(page, request_)[1][DIALOGUE]
    thumb(page, request_, dialogue, True)
    assert page.begin(request_)[DIALOGUE] == ""
    assert page.open(dialogue, request_)[DIALOGUE] == dialogue
    assert [name for _, name in page._earlier(PERSON)] == [dialogue]
    other = request_of(page, "cd" * 16)
    assert "no such dialogue" in page.open(dialogue, other)[NOTE]
    assert "no such dialogue" in thumb(page, other, dialogue, False)[NOTE]
    assert page._earlier("cd" * 16) == []
    assert rows(bot, FEEDBACK) == [("thumb", 2, 1.0, None, None)]


def test_a_page_of_before_a_restart_goes_on(bot, page, request_):
    dialogue = said(page, request_)[1][DIALOGUE]
    with Answering(bot, seed=1) as answering:
        restarted = Page(page.store, answering, "bot")
        thumb(restarted, request_, dialogue, True)
        said(restarted, request_, "And ?", dialogue)
    assert rows(bot, FEEDBACK) == [("thumb", 2, 1.0, None, None)]
    assert rows(bot, "SELECT position FROM turns ORDER BY id") == [(0,), (1,), (2,), (3,)]


def test_what_cannot_be_is_said_on_the_page(bot, page, request_):
    assert "allow cookies" in said(page, request_of(page, None))[1][NOTE]
    box, view = said(page, request_, "x" * 51)
    assert (box, "has 51 characters; shorten it to 50" in view[NOTE]) == ("x" * 51, True)
    dialogue = said(page, request_)[1][DIALOGUE]
    for index in (0, 2, -1, None, "1", [7, 0]):
        assert "Only the bot&#x27;s answers" in thumb(page, request_, dialogue, True, index)[NOTE]
    is_open, view = edit(page, request_, dialogue, "x" * 60)
    assert (is_open, "has 60 characters" in view[NOTE]) == (True, True)
    assert "not yet one answer" in page.draft("", request_of(page, tab="new"))[2]
    assert "only one answer" in page.choose_second(dialogue, request_)[NOTE]
    assert "1 to 5" in page.score(None, dialogue, request_)[NOTE]
    assert "is 1, 2, 3, 4 or 5" in page.score(7, dialogue, request_)[NOTE]
    assert rows(bot, FEEDBACK) == []


def test_too_fast(page, request_):
    notes = [said(page, request_, tab)[1][NOTE] for tab in "abcdefgh"]
    assert [bool(note) for note in notes] == [False] * 6 + [True] * 2
    assert "faster than this page allows" in notes[-1]
    assert said(page, request_of(page, "cd" * 16))[1][NOTE] == ""


def test_forget_me(bot, page, request_):
    dialogue = said(page, request_)[1][DIALOGUE]
    thumb(page, request_, dialogue, True)
    said(page, request_of(page, "cd" * 16), "Good morning")
    assert "Removed: 4 rows" in page.forget(request_)[NOTE]
    assert rows(bot, "SELECT text FROM turns WHERE speaker = 'user'") == [("Good morning",)]
    assert PERSON in page.app._renewed
    assert "no such dialogue" in thumb(page, request_, dialogue, True)[NOTE]


def test_a_locked_store_does_not_hide_the_answer(bot, page, request_, monkeypatch):
    monkeypatch.setattr(schema, "BUSY_TIMEOUT", 0.01)
    connection = sqlite3.connect(bot.store_path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    view = said(page, request_)[1]
    assert "not stored, so it cannot be rated" in view[NOTE]
    assert "cannot be rated" in thumb(page, request_, "", True)[NOTE]
    connection.close()
    assert "Saved" in thumb(page, request_, "", True)[NOTE]
    assert [row[0] for row in rows(bot, FEEDBACK)] == ["thumb"]


def test_a_tab_that_was_closed(page, request_):
    said(page, request_)
    assert len(page.talks) == 1
    page.leave(request_)
    assert len(page.talks) == 0


def test_the_page_loads_no_font_and_has_no_footer(page):
    config = page.demo.config
    assert config["footer_links"] == []
    assert [sheet for sheet in config["stylesheets"] if "//" in sheet] == []
    assert page.demo.analytics_enabled is False
    (chat,) = [one["props"] for one in config["components"] if one["type"] == "chatbot"]
    assert (chat["buttons"], chat["render_markdown"], chat["sanitize_html"]) == (["copy"], False, True)
    assert {one["api_visibility"] for one in config["dependencies"]} == {"private"}


def test_an_answer_that_fails_is_said(page, request_, monkeypatch):
    def stream(*_):
        raise UserError("the model <b>is gone</b>")
        yield

    monkeypatch.setattr(page.answering, "stream", stream)
    assert "The model &lt;b&gt;is gone&lt;/b&gt;." in said(page, request_)[1][NOTE]
    monkeypatch.undo()
    assert said(page, request_)[1][NOTE] == ""
