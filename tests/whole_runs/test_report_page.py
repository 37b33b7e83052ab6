"""The page about runs in a browser, opened from disk: search, order, loading again while the run goes on; it asks for nothing."""

from dataclasses import replace

import pytest

from rlhf_dialog.evaluation.run_page.page import Live, PageSample, RunRecord, build_page

pytestmark = pytest.mark.slow
LONG = 120_000  # milliseconds: not a deadline, a machine may be busy
HOSTILE = '</script><img src="http://example.invalid/a.png" onerror="alert(1)"><b>bold</b>'


def record(name, step):
    rows = [{"iteration": i + 1, "objective/score": step * i, "objective/kl": None} for i in range(11)]
    for row in rows:
        row |= {
            "reward/intent_weighted": row["objective/score"] / 2,
            "reward/length_weighted": row["objective/score"] / 2,
        }
        row |= {f"own/{HOSTILE}": 1.0}
    texts = ("a short one", HOSTILE, "the longest of them all")
    samples = [PageSample(f"Prompt {i}", "", {"after": text}) for i, text in enumerate(texts)]
    return RunRecord(name, rows, {"lr": step}, samples, [("torch", HOSTILE)])


@pytest.fixture
def opened(browser, tmp_path):
    """A function that opens a page of runs without a network: the page, and what it asked for or complained about.

    `at`: seconds of the epoch at which its clock begins, which the test moves.
    """
    contexts = []

    def open_(runs, width=1280, scheme="light", at=None):
        (tmp_path / "report.html").write_text(build_page(runs), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
        contexts.append(context)
        page, noticed = context.new_page(), []
        page.set_default_timeout(LONG)
        page.on("request", lambda request: noticed.append(request.url) if not request.url.startswith("file:") else None)
        page.on("dialog", lambda dialog: noticed.append(dialog.message) or dialog.dismiss())
        page.on("pageerror", lambda error: noticed.append(str(error)))
        page.on("console", lambda line: noticed.append(line.text))
        if at is not None:
            page.clock.install(time=at - 1)
            page.clock.pause_at(at)  # else it goes on by itself, and a busy machine sees the page load too early
        page.goto((tmp_path / "report.html").as_uri())
        return page, noticed

    yield open_
    for context in contexts:
        context.close()


def test_search_and_sorting_of_replies_that_are_hostile(opened):
    page, noticed = opened([record("runs/a", 0.25)], scheme="dark")
    rows = page.locator("#samples tbody tr")
    assert [rows.nth(i).locator("td").nth(1).text_content() for i in range(3)][1] == HOSTILE
    page.locator("#search").fill("ONERROR")
    assert (rows.count(), page.locator("#count").text_content()) == (1, "1 of 3 shown")
    page.locator("#search").fill("prompt 2")
    assert (rows.count(), rows.first.locator("td").first.text_content()) == (1, "Prompt 2")
    page.locator("#search").fill("")
    page.locator("#sort").select_option(label="after: longest first")
    assert rows.first.locator("td").nth(1).text_content() == "the longest of them all"
    page.locator("#more summary").click()
    assert page.locator("#others h3").all_text_contents()[-1] == f"own/{HOSTILE}"
    assert page.locator("img, b >> text=bold").count() == 0
    assert page.locator("#facts tbody td").all_text_contents() == ["torch", HOSTILE]
    dark = page.evaluate("getComputedStyle(document.documentElement).colorScheme")
    assert dark == "light dark"
    assert noticed == []


# -- while the run goes on

BEGAN = 1_700_000_000  # seconds of the epoch


def live(state, iteration, why=""):
    """The page of a run whose ledger has 40 replies of this iteration."""
    rows = [
        {"iteration": iteration, "index": i, "score": i / 7, "kl": None, "reply": f"reply {i} of {HOSTILE}"}
        for i in range(40)
    ]
    progress = Live(state, iteration, iteration / 20, BEGAN, 30.0, 30.0, why)
    return [replace(record("runs/a", 0.25), newest=rows, live=progress)]


@pytest.fixture
def watched(opened):
    """A page that goes on, with a clock that the test moves, at `BEGAN` + 10 seconds."""
    page, noticed = opened(live("running", 3), width=390, at=BEGAN + 10)
    return page, noticed


def next_page(page, folder, runs, seconds):
    """Put the page of `runs` in place of the one in the folder, and let `seconds` pass."""
    (folder / "report.html").write_text(build_page(runs), encoding="utf-8")
    page.clock.run_for(1000 * seconds)


def said(page, text):
    """Wait until the line about the run has the text."""
    page.locator("#live", has_text=text).wait_for()


def test_a_page_that_goes_on_loads_again_and_keeps_what_was_chosen(watched, tmp_path):
    page, noticed = watched
    said(page, "The run goes on: after iteration 3, 15 % done.")
    rows = page.locator("#newest-rows tbody tr")
    page.locator("#newest-sort").select_option(label="score: highest first")
    page.locator("#more summary").click()
    page.locator("#newest-search").fill("reply 3")
    assert rows.count() == 11
    assert rows.first.locator("td").first.text_content().startswith("reply 39 of")
    wide = page.locator("#newest .wide")
    assert wide.evaluate("(one) => one.scrollWidth > one.clientWidth")  # the table moves sideways, the page does not
    wide.evaluate("(one) => { one.scrollLeft = 40; }")
    page.evaluate("scrollTo(0, 700)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    next_page(page, tmp_path, live("running", 4), 29)
    said(page, "after iteration 3")
    page.clock.run_for(1500)
    said(page, "The run goes on: after iteration 4, 20 % done.")
    assert page.locator("#newest-search").input_value() == "reply 3"
    assert rows.count() == 11
    assert rows.first.locator("td").first.text_content().startswith("reply 39 of")
    assert page.evaluate("document.activeElement.id") == "newest-search"
    assert (page.evaluate("scrollY"), wide.evaluate("(one) => one.scrollLeft")) == (700, 40)
    assert page.locator("#others figure").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert noticed == []
