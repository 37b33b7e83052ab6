"""The page in a browser (chromium, driven by playwright), on a desk and on a phone; plain sqlite3 reads the store."""

import re
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import pytest

from rlhf_dialog.feedback.sessions.batched_generation import Answering
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.people import People
from tests.parts.agents import save

pytestmark = pytest.mark.slow
LONG = 120_000  # milliseconds: not a deadline, a machine may be busy
HOSTILE = (
    '<script>fetch("http://example.invalid/a")</script><img src="http://example.invalid/b.png" onerror="alert(1)">\n'
    "![c](http://example.invalid/c.png) [d](javascript:alert(1)) <b>bold</b> $x^2$ \x1b[2J"
)


@pytest.fixture(scope="module")
def bot(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return Bot.create(folder / "bot", str(save(folder / "model", {"max_new_tokens": 8, "max_prompt_length": 100})))


@pytest.fixture(scope="module")
def address(bot):
    """The address of `feedback serve` in a process of its own."""
    command = [sys.executable, "-m", "rlhf_dialog.feedback", "serve", "--run", str(bot.folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        yield re.search(r"http://\S+", line)[0]
    finally:
        process.terminate()
        assert process.wait() == 143


@pytest.fixture
def paced(bot):
    """The address of a page in this process, and a semaphore: its answers wait for a release before each token."""
    from rlhf_dialog.feedback.commands.serve import http_server
    from rlhf_dialog.feedback.page.page import FeedbackPage

    tokens = threading.Semaphore(0)
    with Answering(bot, seed=0) as answering, closing(bot.store()) as store, socket.socket() as listening:
        stream = answering.stream

        def wait(*turns):
            for answer in stream(*turns):
                tokens.acquire()
                yield answer

        answering.stream = wait
        listening.bind(("127.0.0.1", 0))
        server = http_server(FeedbackPage(store, answering).app, 1)
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        serving.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", tokens
        server.should_exit = True
        serving.join()


@contextmanager
def opened(browser, address, width=1280):
    """A page of a new person; requests that leave the machine, and errors of scripts, fail the test."""
    context = browser.new_context(viewport={"width": width, "height": 844})
    context.set_default_timeout(LONG)
    page = context.new_page()
    outside, errors = [], []
    page.on("request", lambda request: outside.append(request.url) if leaves(request.url) else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    page.wait_for_selector("#message textarea")
    page.get_by_text("Version 0001 answers.").wait_for()
    yield page
    assert outside == []
    assert errors == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def leaves(url: str) -> bool:
    return urlsplit(url).scheme not in ("data", "blob", "about") and urlsplit(url).hostname != "127.0.0.1"


def say(page, text):
    number = page.locator("#chat .bot.message").count()
    page.fill("#message textarea", text)
    page.press("#message textarea", "Enter")
    page.locator("#chat .bot.message").nth(number).wait_for()
    finished(page)


def finished(page):
    """Wait for the end of an answer: then the last answer can be scored or compared."""
    page.locator("#score, #compare").first.wait_for()


def read(page, speaker):
    """The last message as a reader sees it: word joiners have no width."""
    return page.locator(f"#chat .{speaker}.message").last.inner_text().strip().replace("\u2060", "")


def place(page, part):
    return page.locator(part).last.bounding_box()


def press(page, label):
    page.locator(f'#chat .message-buttons-left button[aria-label="{label}"]').last.click()


def noted(page, text):
    page.locator("#note").get_by_text(text).wait_for()


def edit(page, text):
    page.get_by_role("button", name="Edit the answer").click()
    page.locator("#editor textarea").fill(text)
    page.get_by_role("button", name="Save").click()
    noted(page, "Saved: the dialogue goes on with your answer.")


def rows(bot, statement, *values):
    connection = sqlite3.connect(bot.store_path)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def test_an_invitation_makes_one_browser_the_person_that_it_names(browser, bot, address):
    people = People.load(bot.folder)
    link = f"{address}#invite={people.invite_to_page('Ann')}"
    with opened(browser, link) as page:
        page.wait_for_function("location.hash === ''")
        page.get_by_text("Version 0001 answers.").wait_for()
        say(page, "I was invited")
        (cookie,) = page.context.cookies()
        assert cookie["value"][:32] == people.get("Ann").person
    owner = "SELECT person FROM dialogues JOIN turns ON dialogue = dialogues.id WHERE text = 'I was invited'"
    with closing(bot.store()) as store:
        assert rows(bot, owner) == [(store.hash_person(people.get("Ann").person),)]
    context = browser.new_context()
    page, said = context.new_page(), []
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.goto(link)
    page.wait_for_function("location.hash === ''", timeout=LONG)
    assert ["used before" in text for text in said] == [True]
    assert context.cookies() == []
    context.close()


def test_what_people_do_on_the_page_of_a_phone_is_in_the_store(browser, bot, address):
    hello = "Hello from a phone"
    with opened(browser, address, 390) as page:
        page.get_by_text("is stored to train this bot").wait_for()
        say(page, hello)
        like, dislike, send = (
            place(page, part) for part in ("[aria-label=Like] svg", "[aria-label=Dislike] svg", "#message")
        )
        assert like["x"] + like["width"] <= dislike["x"]
        assert min(like["width"], like["height"]) >= 20
        assert send["y"] + send["height"] <= 844  # in sight
        press(page, "Retry")
        page.get_by_role("button", name="The second answer is better").click()
        noted(page, "Saved: the second answer is better")
        press(page, "Like")
        noted(page, "Saved: you like this answer.")
        press(page, "Feedback")
        page.locator("#chat .extra-feedback-options").get_by_text("Off topic").last.click()
        noted(page, "Saved: you do not like this answer (off topic).")
        press(page, "Like")
        noted(page, "Saved: you like this answer.")
        page.locator("#score label").get_by_text("4").click()
        noted(page, "Saved: 4 of 5 for the last answer.")
        edit(page, "A better answer")
        press(page, "Dislike")
        noted(page, "You wrote this answer, and your edit says already that it is better")
        page.locator("#whole label").get_by_text("5").click()
        noted(page, "Saved: 5 of 5 for this dialogue.")
        page.get_by_role("button", name="New dialogue").click()
        page.locator("#chat .bot.message").wait_for(state="detached")
        page.locator("#earlier input").click()
        page.get_by_role("option", name=hello).click()
        page.locator("#chat").get_by_text("A better answer").wait_for()
        page.locator('#chat button[aria-label="Liked"]').wait_for()
        assert page.locator("#score label.selected").inner_text().strip() == "4"
        assert page.locator("#whole label.selected").inner_text().strip() == "5"
        assert page.locator("#chat .bot.message").count() == 1
    ((dialogue, source, person),) = rows(
        bot,
        "SELECT d.id, d.source, d.person FROM dialogues d JOIN turns t ON t.dialogue = d.id WHERE t.text = ?",
        hello,
    )
    assert (source, len(person)) == ("page", 16)
    turns = rows(bot, "SELECT id, position, speaker, version FROM turns WHERE dialogue = ? ORDER BY id", dialogue)
    (_, first, second) = [row[0] for row in turns]
    assert [row[1:] for row in turns] == [(0, "user", None), (1, "agent", "0001"), (1, "agent", "0001")]
    found = rows(
        bot,
        "SELECT kind, turn, value, text, other, person = ? FROM feedback WHERE dialogue = ? ORDER BY id",
        person,
        dialogue,
    )
    assert found == [
        ("choice", second, None, None, first, 1),
        ("thumb", second, 1.0, None, None, 1),
        ("thumb", second, -1.0, "Off topic", None, 1),
        ("thumb", second, 1.0, None, None, 1),
        ("score", second, 4.0, None, None, 1),
        ("edit", second, None, "A better answer", None, 1),
        ("dialogue_score", None, 5.0, None, None, 1),
    ]


def test_a_thumb_while_an_answer_grows_is_stored_or_answered_by_a_note(browser, bot, paced):
    address, tokens = paced
    with opened(browser, address) as page:
        like, dislike = (page.locator(f"#chat [aria-label^={label}]") for label in ("Like", "Dislike"))
        tokens.release(100)
        say(page, "Rate me early")
        while tokens.acquire(blocking=False):
            pass
        page.fill("#message textarea", "Rate me late")
        page.press("#message textarea", "Enter")
        tokens.release()
        page.locator("#chat .bot.message").nth(1).wait_for()
        for thumb, said in ((like, "you like"), (dislike, "you do not like"), (like, "you like")):
            thumb.first.click()
            noted(page, f"Saved: {said} this answer.")
        page.locator("#chat [aria-label=Liked]").wait_for()
        like.last.click()
        noted(page, "This answer is not finished")
        page.locator('#chat [aria-label="Liked"] >> nth=1').wait_for(state="detached")
        tokens.release(100)
        page.get_by_role("button", name="Why this answer?").wait_for()
        noted(page, "This answer is not finished")
        dislike.last.click()
        noted(page, "Saved: you do not like this answer.")
        assert [one.get_attribute("aria-label") for one in (like.first, dislike.last)] == ["Liked", "Disliked"]
    found = rows(
        bot,
        "SELECT q.text, f.value FROM feedback f JOIN turns a ON a.id = f.turn JOIN turns q ON q.dialogue = a.dialogue "
        "AND q.position = a.position - 1 WHERE q.text LIKE 'Rate me %' ORDER BY f.id",
    )
    assert found == [("Rate me early", value) for value in (1, -1, 1)] + [("Rate me late", -1)]


def test_what_anybody_writes_is_shown_as_text_and_loads_nothing(browser, bot, address):
    seen = HOSTILE.replace("\x1b", "\\x1b")
    with opened(browser, address) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        say(page, HOSTILE)
        assert read(page, "user") == seen
        edit(page, HOSTILE)
        assert read(page, "bot") == seen
        page.reload()
        page.get_by_text("Version 0001 answers.").wait_for()
        page.locator("#earlier input").click()
        page.get_by_role("option", name="<script>").click()
        page.locator("#chat .bot.message").wait_for()
        assert read(page, "bot") == seen
        assert page.locator("#chat :is(.user, .bot).message :is(script, img, a, b)").count() == 0
    assert rows(bot, "SELECT DISTINCT text FROM feedback WHERE kind = 'edit' AND text LIKE '<script>%'") == [(HOSTILE,)]
