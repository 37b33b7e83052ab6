"""The page of a blind reading in a browser, opened from disk and judged by keyboard."""

import json

import pytest

from experiments.blind import reading as blind

pytestmark = pytest.mark.slow
LONG = 120_000  # milliseconds: not a deadline, a machine may be busy
HOSTILE = '</script><img src="http://example.invalid/a.png" onerror="alert(1)"><b>bold</b>'
ROWS = [
    {
        "index": i,
        "prompt": ["Hello .", HOSTILE],
        "replies": {name: {"response": f"{name[0]} {i} {HOSTILE}"} for name in ("one", "two")},
    }
    for i in range(4)
]


def test_a_reader_judges_all_pairs_by_keyboard(browser, tmp_path):
    reading = blind.reading(ROWS, ("one", "two"), 4, seed=5)
    (tmp_path / "page.html").write_text(reading.page, encoding="utf-8")
    asked, dialogs = [], []
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(LONG)
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: dialogs.append(dialog) or dialog.dismiss())
    page.goto((tmp_path / "page.html").as_uri())
    data = json.loads(page.locator("#data").text_content())
    assert page.locator("#left").text_content() == data["pairs"][0]["left"]
    assert page.locator("#turns").text_content().endswith(HOSTILE)
    page.locator("#reader").fill("Ann 1 2")  # keys in the field judge nothing
    page.locator("h1").click()
    for key in ("1", "ArrowRight", "Backspace", "0", " ", "2"):
        page.keyboard.press(key)
    assert page.locator("#place").text_content() == "pair 4 of 4, 4 judged"
    with page.expect_download() as download:
        page.get_by_role("button", name="save verdicts").click()
    download.value.save_as(tmp_path / "verdicts.json")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.close()
    saved = json.loads((tmp_path / "verdicts.json").read_text(encoding="utf-8"))
    assert (saved["reader"], saved["verdicts"]) == ("Ann 1 2", ["left", "tie", "tie", "right"])
    outcome, _ = blind.outcome_of(json.loads(reading.key), tmp_path / "verdicts.json")
    assert (outcome.wins + outcome.losses, outcome.ties) == (2, 2)
    assert [url for url in asked if not url.startswith(("file:", "blob:"))] == []
    assert dialogs == []
