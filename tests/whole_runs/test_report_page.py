"""The page about runs in a browser, opened from disk: search, order, loading again while the run goes on; it asks for nothing."""

from dataclasses import replace

import pytest

from rlhf_dialog.evaluation.run_page.page import Live, PageSample, RunRecord, build_page

pytestmark = pytest.mark.slow
LONG = 120_000  # milliseconds: not a deadline, a machine may be busy
HOSTILE = '</script><img src="http://example.invalid/a.png" onerror="alert(1)"><b>bold</b>'
BEGAN = 1_700_000_000  # seconds of the epoch


def live(iteration):
    """The page of a run of hostile texts that goes on, whose ledger has 40 replies of this iteration."""
    rows = [{"iteration": i + 1, "objective/score": i / 4, "objective/kl": None} for i in range(11)]
    for row in rows:
        halves = dict.fromkeys(("reward/intent_weighted", "reward/length_weighted"), row["objective/score"] / 2)
        row |= halves | {f"own/{HOSTILE}": 1.0}
    texts = ("a short one", HOSTILE, "the longest of them all")
    samples = [PageSample(f"Prompt {i}", "", {"after": text}) for i, text in enumerate(texts)]
    newest = [
        {"iteration": iteration, "index": i, "score": i / 7, "kl": None, "reply": f"reply {i} of {HOSTILE}"}
        for i in range(40)
    ]
    record = RunRecord("runs/a", rows, {"lr": 0.25}, samples, [("torch", HOSTILE)])
    return [replace(record, newest=newest, live=Live("running", iteration, iteration / 20, BEGAN, 30.0, 30.0, ""))]


@pytest.fixture
def opened(browser, tmp_path):
    """The page at `BEGAN` + 10 seconds of a clock that the test moves, without a network; and what it asked for or said."""
    (tmp_path / "report.html").write_text(build_page(live(3)), encoding="utf-8")
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark", offline=True)
    page, noticed = context.new_page(), []
    page.set_default_timeout(LONG)
    page.on("request", lambda request: noticed.append(request.url) if not request.url.startswith("file:") else None)
    page.on("dialog", lambda dialog: noticed.append(dialog.message) or dialog.dismiss())
    page.on("pageerror", lambda error: noticed.append(str(error)))
    page.on("console", lambda line: noticed.append(line.text))
    page.clock.install(time=BEGAN + 9)
    page.clock.pause_at(BEGAN + 10)  # else it goes on by itself, and a busy machine sees the page load too early
    page.goto((tmp_path / "report.html").as_uri())
    yield page, noticed
    context.close()


def said(page, text):
    """Wait until the line about the run has the text."""
    page.locator("#live", has_text=text).wait_for()


def test_a_page_of_hostile_texts_that_goes_on_loads_again_and_keeps_what_was_chosen(opened, tmp_path):
    page, noticed = opened
    said(page, "The run goes on: after iteration 3, 15 % done.")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light dark"
    samples = page.locator("#samples tbody tr")
    assert samples.nth(1).locator("td").nth(1).text_content() == HOSTILE
    page.locator("#search").fill("ONERROR")
    assert (samples.count(), page.locator("#count").text_content()) == (1, "1 of 3 shown")
    page.locator("#search").fill("")
    page.locator("#sort").select_option(label="after: longest first")
    assert samples.first.locator("td").nth(1).text_content() == "the longest of them all"
    page.locator("#more summary").click()
    assert page.locator("#others h3").all_text_contents()[-1] == f"own/{HOSTILE}"
    assert page.locator("img, b >> text=bold").count() == 0
    assert page.locator("#facts tbody td").all_text_contents() == ["torch", HOSTILE]
    rows = page.locator("#newest-rows tbody tr")
    page.locator("#newest-sort").select_option(label="score: highest first")
    page.locator("#newest-search").fill("reply 3")
    assert rows.count() == 11
    wide = page.locator("#newest .wide")
    assert wide.evaluate("(one) => one.scrollWidth > one.clientWidth")  # the table moves sideways, the page does not
    wide.evaluate("(one) => { one.scrollLeft = 40; }")
    page.evaluate("scrollTo(0, 700)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    (tmp_path / "report.html").write_text(build_page(live(4)), encoding="utf-8")
    page.clock.run_for(29_000)
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
