"""What the page's buttons do, called as Gradio calls them; tests/whole_runs/test_page_in_browser.py uses them in a browser."""

import json
import re
from contextlib import closing
from itertools import pairwise
from types import SimpleNamespace

import pytest

pytest.importorskip("gradio", reason="the page needs gradio")

import gradio as gr

from rlhf_dialog.commands.terminal_state import terminal_person
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.page.layout import CSS, LOOKS
from rlhf_dialog.feedback.page.page import SKIPPED, FeedbackPage, find_owner
from rlhf_dialog.feedback.page.rendering import escape_text, list_dialogues
from rlhf_dialog.feedback.sessions.batched_generation import Answering
from rlhf_dialog.feedback.sessions.chat_session import ChatSession
from rlhf_dialog.feedback.store.settings import PageKeys
from rlhf_dialog.models.network import AGENT_FILE
from tests.parts.bots import rows

PERSON = "ab" * 16
CHAT, PLACE, COMPARE, TOOLS, SCORE, WHOLE, EARLIER, WHO, EDITOR, NOTE = range(10)


@pytest.fixture
def page(store, answering):
    return FeedbackPage(store, answering, limits=PageKeys(page_message_chars=50, page_messages_a_minute=6))


@pytest.fixture
def request_(page):
    return request_of(page)


def request_of(page, person=PERSON, tab="tab"):
    cookie = page.app.cookie
    return SimpleNamespace(cookies={cookie.name: cookie.sign(person)} if person else {}, session_hash=tab)


def said(page, request, text="Hello", dialogue=""):
    """The box, and the view after the answer."""
    box, *view = last([*page.say(text, dialogue, request)])
    return box, view


def last(views):
    """The last view that shows something."""
    return [view for view in views if view[-len(SKIPPED) :] != SKIPPED][-1]


def thumb(page, request, dialogue, liked, index=1):
    return last([*page.thumb(dialogue, request, gr.LikeData(None, {"index": index, "value": ["x"], "liked": liked}))])


def edit(page, request, dialogue, text):
    """Whether the editor stays open, and the view."""
    view = page.edit(text, dialogue, request)
    return is_visible(view[EDITOR]), view


def is_visible(part):
    """Gradio gives an update, or a part; what is left as it is has no key `visible`."""
    return part.get("visible", True) if isinstance(part, dict) else part.visible


def test_an_answer_grows_and_is_stored(bot, page, request_):
    *views, ending = page.say("Hello", "", request_)
    assert len(views) > 2
    assert (
        ending[1:] == SKIPPED
    )  # Gradio sends the last view twice: an old one would take away a thumb that came between
    grown = [view[1 + CHAT][-1]["content"] for view in views[1:-1]]
    assert views[0][1 + CHAT] == [{"role": "user", "content": "Hello"}]  # before the model has begun
    assert [n for n, view in enumerate(views) if view[0] == ""] == [0]  # the next message is written meanwhile
    assert all(late.startswith(early) for early, late in pairwise(grown))
    _, *view = views[-1]
    text = page.talks._open[PERSON, "tab"].talk.last.text
    assert grown[-1] == escape_text(text)
    assert (view[WHO], view[NOTE]) == ("Version 0001 answers.", gr.skip())
    assert rows(bot, "SELECT id, source FROM dialogues") == [(view[PLACE].partition(" ")[0], "page")]
    assert rows(bot, "SELECT speaker, text FROM turns") == [("user", "Hello"), ("agent", text)]


def test_ratings_are_stored(bot, page, request_):
    dialogue = said(page, request_)[1][PLACE].partition(" ")[0]
    assert "you like this answer" in thumb(page, request_, dialogue, True)[NOTE]
    thumb(page, request_, dialogue, "Unkind")
    thumb(page, request_, dialogue, "Unkind")  # as Gradio does
    assert "taken back" in thumb(page, request_, dialogue, "")[NOTE]
    view = last([*page.again(dialogue, request_)])
    assert is_visible(view[COMPARE])
    assert not is_visible(view[SCORE])
    assert "Say first which" in [*page.again(dialogue, request_)][-1][NOTE]
    assert "the second answer is better" in page.choose_second(dialogue, request_)[NOTE]
    list(page.again(dialogue, request_))
    page.choose_first(dialogue, request_)
    assert page.draft(dialogue, request_)[1:] == [rows(bot, "SELECT text FROM turns WHERE id = 3")[0][0], ""]
    page.score(4, dialogue, request_)
    is_open, view = edit(page, request_, dialogue, "Better")
    assert is_open is False
    assert "You wrote this answer" in thumb(page, request_, view[PLACE], True)[NOTE]
    page.score_dialogue(5, dialogue, request_)
    assert rows(bot) == [
        ("thumb", 2, 1.0, None, None),
        ("thumb", 2, -1.0, "Unkind", None),
        ("withdrawn", 2, None, "thumb", None),
        *(("choice", 3, None, None, 2), ("choice", 3, None, None, 2), ("choice", 3, None, None, 4)),
        ("score", 3, 4.0, None, None),
        ("edit", 3, None, "Better", None),
        ("dialogue_score", None, 5.0, None, None),
    ]
    assert page.why(dialogue, request_)[NOTE].startswith('<p role="status">Version 0001 answered')


@pytest.mark.slow
def test_a_thumb_is_stored_or_refused_while_an_answer_grows(bot, page, request_):
    place = said(page, request_)[1][PLACE]
    growing = page.say("And ?", place, request_)
    next(growing)
    next(growing)
    view = thumb(page, request_, place, True, index=1)
    assert "you like this answer" in view[NOTE]
    assert (view[CHAT].feedback_value, view[PLACE:NOTE]) == (["Like"], [gr.skip()] * 8)
    assert "value" not in view[CHAT].constructor_args  # the answer that grows stays
    assert "this answer is not finished" in thumb(page, request_, place, True, index=3)[NOTE].lower()
    *views, _ = growing
    assert [view[1 + NOTE] for view in views] == [gr.skip()] * len(views)  # a note about a thumb stays
    assert views[-1][1 + CHAT].feedback_value == ["Like", None]
    assert rows(bot) == [("thumb", 2, 1.0, None, None)]


@pytest.mark.slow
def test_a_mark_that_was_refused_is_taken_from_the_browser(page, request_):
    """A browser lights what is clicked, and keeps it until the mark that it was told changes."""
    place = said(page, request_)[1][PLACE]
    _, view = edit(page, request_, place, "Better")
    click = gr.LikeData(None, {"index": 1, "value": ["x"], "liked": True})
    *views, ending = page.thumb(view[PLACE], request_, click)
    assert ([view[CHAT].feedback_value[0] for view in views], ending) == (["Like", None], SKIPPED)


@pytest.mark.slow
def test_a_thumb_finds_the_answer_that_the_page_does_not_show_whole_yet(bot, page, request_):
    _, view = said(page, request_)
    first = thumb(page, request_, "", True)  # the page still sends what it sent with the message
    assert ("you like this answer" in first[NOTE], first[PLACE]) == (True, view[PLACE])
    _, second = said(page, request_, "And ?", view[PLACE])
    thumb(page, request_, view[PLACE], False, index=3)
    list(page.again(second[PLACE], request_))
    thumb(page, request_, second[PLACE], True, index=4)
    assert rows(bot) == [("thumb", turn, value, None, None) for turn, value in ((2, 1.0), (4, -1.0), (5, 1.0))]
    page.choose_first(page.open(view[PLACE].partition(" ")[0], request_)[PLACE], request_)
    assert "the dialogue has changed" in thumb(page, request_, second[PLACE], True, index=3)[NOTE].lower()


@pytest.mark.slow
def test_a_dialogue_is_opened_again_by_its_person_alone(bot, page, request_):
    dialogue = said(page, request_)[1][PLACE].partition(" ")[0]
    thumb(page, request_, dialogue, True)
    assert page.begin(request_)[PLACE] == ""
    view = page.open(dialogue, request_)
    assert (view[PLACE].partition(" ")[0], is_visible(view[EDITOR])) == (dialogue, False)
    assert [name for _, name in list_dialogues(page.store, PERSON)] == [dialogue]
    other = request_of(page, "cd" * 16)
    assert "no such dialogue" in page.open(dialogue, other)[NOTE]
    assert "no such dialogue" in thumb(page, other, dialogue, False)[NOTE]
    assert list_dialogues(page.store, "cd" * 16) == []
    with Answering(bot, seed=1) as answering:  # the server was restarted
        restarted = FeedbackPage(page.store, answering)
        thumb(restarted, request_, dialogue, False)
        assert not is_visible(said(restarted, request_, "And ?", dialogue)[1][EDITOR])
    assert rows(bot) == [("thumb", 2, 1.0, None, None), ("thumb", 2, -1.0, None, None)]
    assert rows(bot, "SELECT position FROM turns ORDER BY id") == [(0,), (1,), (2,), (3,)]


@pytest.mark.slow
def test_what_another_tab_does_is_seen_before_anything_is_stored(bot, page, request_):
    place = said(page, request_)[1][PLACE]
    dialogue, other = place.partition(" ")[0], request_of(page, tab="other")
    seen = page.open(dialogue, other)[PLACE]
    said(page, other, "From the other tab", seen)
    *_, (box, *view) = page.say("Hello ?", place, request_)
    assert (box, "nothing was saved of what you just did" in view[NOTE]) == ("Hello ?", True)
    assert "From the other tab" in str(view[CHAT].value)
    assert thumb(page, request_, place, True, 1)[NOTE] == view[NOTE]
    assert "you like this answer" in thumb(page, request_, view[PLACE], True, 3)[NOTE]
    assert rows(bot) == [("thumb", 4, 1.0, None, None)]
    assert rows(bot, "SELECT position FROM turns ORDER BY id") == [(0,), (1,), (2,), (3,)]


@pytest.mark.slow
def test_what_cannot_be_is_said_on_the_page(bot, page, request_):
    assert "allow cookies" in said(page, request_of(page, None))[1][NOTE]
    box, view = said(page, request_, "x" * 51)
    assert (box, "has 51 characters; shorten it to 50" in view[NOTE]) == ("x" * 51, True)
    dialogue = said(page, request_)[1][PLACE].partition(" ")[0]
    for index in (0, 2, -1, None, "1", [7, 0]):
        assert "Only the bot&#x27;s answers" in thumb(page, request_, dialogue, True, index)[NOTE]
    is_open, view = edit(page, request_, dialogue, "x" * 60)
    assert (is_open, "has 60 characters" in view[NOTE]) == (True, True)
    assert "not yet one answer" in page.draft("", request_of(page, tab="new"))[2]
    assert "only one answer" in page.choose_second(dialogue, request_)[NOTE]
    assert "is 1, 2, 3, 4 or 5" in page.score(None, dialogue, request_)[NOTE]
    assert "is 1, 2, 3, 4 or 5" in page.score(7, dialogue, request_)[NOTE]
    assert rows(bot) == []


def test_too_fast(page, request_):
    notes = [said(page, request_, tab)[1][NOTE] for tab in "abcdefgh"]
    assert [note != gr.skip() for note in notes] == [False] * 6 + [True] * 2
    assert "faster than one person may" in notes[-1]
    assert said(page, request_of(page, "cd" * 16, "other"))[1][NOTE] == gr.skip()
    assert len(page.talks) == 2
    page.leave(request_)  # its tab was closed
    assert len(page.talks) == 1


def test_forget_me(bot, page, request_):
    dialogue = said(page, request_)[1][PLACE].partition(" ")[0]
    thumb(page, request_, dialogue, True)
    said(page, request_of(page, "cd" * 16), "Good morning")
    assert "Removed: 4 rows" in page.forget(request_)[NOTE]
    assert rows(bot, "SELECT text FROM turns WHERE speaker = 'user'") == [("Good morning",)]
    assert "no such dialogue" in thumb(page, request_, dialogue, True)[NOTE]


def test_a_page_of_this_machine_alone_may_be_the_terminals(store, answering, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    mine = ChatSession(store, answering, terminal_person(), "terminal")
    list(mine.say("Hello"))
    limits = PageKeys(page_person="terminal")
    page = FeedbackPage(store, answering, limits=limits)
    for person in (PERSON, "cd" * 16):
        said(page, request_of(page, person))
    assert "needs its cookie" in said(page, request_of(page, None))[1][NOTE]
    assert store.people() == {store.hash_person(terminal_person())}
    assert len(list_dialogues(store, terminal_person())) == 3
    assert find_owner(limits, False, {"localhost"}) == terminal_person()
    assert "page_person" not in caplog.text
    assert find_owner(PageKeys(), False, {"localhost"}) is None
    assert "page_person" not in caplog.text
    for has_logins, hosts in [(True, {"localhost"}), (False, {"127.0.0.1", "chat.example.org"}), (False, None)]:
        assert find_owner(limits, has_logins, hosts) is None
        assert caplog.text.count("page_person: terminal has no effect") == 1
        caplog.clear()


def test_the_page_loads_nothing_from_elsewhere_and_has_no_footer(page):
    config, look = page.demo.config, LOOKS["theme"]
    assert (config["footer_links"], page.demo.analytics_enabled) == ([], False)
    assert [sheet for sheet in (*config["stylesheets"], *look._stylesheets) if "//" in sheet] == []
    css = re.sub(r"""xmlns=['"]http://www.w3.org/2000/svg['"]""", "", CSS + look._get_theme_css())  # a name, no address
    assert not re.search(r"@import|https?:|url\(['\"]?//", css)
    (chat,) = [one["props"] for one in config["components"] if one["type"] == "chatbot"]
    assert (chat["buttons"], chat["render_markdown"], chat["sanitize_html"]) == (["copy"], False, True)
    assert {one["api_visibility"] for one in config["dependencies"]} == {"private"}


def test_what_each_part_does(page):
    found = {}
    for function in page.demo.fns.values():
        for number, event in function.targets:
            part = page.demo.blocks.get(number)
            found[getattr(part, "elem_id", None) or getattr(part, "value", None), event] = function.name
    buttons = {"Edit the answer": "draft", "Save": "edit", "Why this answer?": "why", "New dialogue": "begin"}
    buttons |= {"The first answer is better": "choose_first", "The second answer is better": "choose_second"}
    wanted = {(label, "click"): name for label, name in (buttons | {"Remove all": "forget"}).items()}
    wanted |= {("chat", "like"): "thumb", ("chat", "retry"): "again", ("chat", "example_select"): "say_example"}
    wanted |= {("score", "input"): "score", ("whole", "input"): "score_dialogue", ("earlier", "input"): "open"}
    assert found.items() >= (wanted | {("message", "submit"): "say"}).items()


def test_an_answer_that_fails_is_said(page, request_, monkeypatch):
    def stream(*_):
        raise UserError("the model <b>is gone</b>")
        yield

    monkeypatch.setattr(page.answering, "stream", stream)
    box, view = said(page, request_)
    assert (box, "The model &lt;b&gt;is gone&lt;/b&gt;." in view[NOTE]) == ("Hello", True)
    monkeypatch.undo()
    _, view = said(page, request_)
    assert view[NOTE] == gr.skip()
    page.answering.close()
    box, view = said(page, request_, "And ?", view[PLACE])
    assert (box, "The program is ending" in view[NOTE]) == ("And ?", True)


@pytest.mark.slow
def test_without_the_password_no_event_and_no_stream_is_answered(page):
    from fastapi.testclient import TestClient

    guarded = FeedbackPage(page.store, page.answering, [("ann", "open sesame")])
    client = TestClient(guarded.app, base_url="http://127.0.0.1")
    event = {"data": ["", ""], "fn_index": 0, "session_hash": "tab"}

    def ask():
        paths = ("/config", "/gradio_api/queue/data?session_hash=none", "/manifest.json", "/gradio_api/app_id")
        sent = client.post("/gradio_api/queue/join", json=event)
        return {sent.status_code, *(client.get(path).status_code for path in paths)}

    assert ask() == {401}
    assert client.post("/login", data={"username": "ann", "password": "wrong"}).status_code == 400
    assert ask() == {401}
    answer = client.post("/login", data={"username": "ann", "password": "open sesame"})
    assert [client.get(path).status_code for path in ("/config", "/gradio_api/app_id")] == [200, 200]
    assert all("SameSite=Lax" in cookie for cookie in answer.headers.get_list("set-cookie"))


def test_the_agents_introduction_is_the_title_as_text_and_its_examples_can_be_clicked(bot):
    path = bot.agent_folder("0001") / AGENT_FILE
    introduction = "A <b>waiter</b>. Try: Tea, please. | The bill?"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"introduction": introduction}))
    with Answering(bot, seed=0) as answering, closing(bot.store()) as store:
        page = FeedbackPage(store, answering)
        parts = {part.elem_id: part for part in page.demo.blocks.values()}
    assert "<h1>A &lt;b&gt;waiter&lt;/b&gt;.</h1>" in parts["head"].value
    assert [one["text"] for one in parts["chat"].examples] == ["Tea, please.", "The bill?"]
