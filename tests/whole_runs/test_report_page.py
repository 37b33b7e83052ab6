"""The page about runs in a browser, opened from disk: values under the pointer, search, order; it asks for nothing."""

import pytest

from rlhf_dialog.evaluation.run_page.page import RunRecord, Sample, page_of

pytestmark = pytest.mark.browser
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
    samples = [Sample(f"Prompt {i}", "", {"after": text}) for i, text in enumerate(texts)]
    return RunRecord(name, rows, {"lr": step}, samples, [("torch", HOSTILE)])


@pytest.fixture
def opened(browser, tmp_path):
    """A function that opens a page of runs without a network: the page, and what it asked for or complained about."""
    contexts = []

    def open_(runs, width=1280, scheme="light"):
        (tmp_path / "report.html").write_text(page_of(runs), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
        contexts.append(context)
        page, noticed = context.new_page(), []
        page.set_default_timeout(LONG)
        page.on("request", lambda request: noticed.append(request.url) if not request.url.startswith("file:") else None)
        page.on("dialog", lambda dialog: noticed.append(dialog.message) or dialog.dismiss())
        page.on("pageerror", lambda error: noticed.append(str(error)))
        page.on("console", lambda line: noticed.append(line.text))
        page.goto((tmp_path / "report.html").as_uri())
        return page, noticed

    yield open_
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_value_under_the_pointer_and_under_the_keys(opened, width):
    page, noticed = opened([record("runs/a", 0.25)], width)
    figure = page.locator("#charts figure").first
    plot, values = figure.locator(".plot"), figure.locator(".values")
    assert values.text_content() == "iteration 11:2.5"
    plot.scroll_into_view_if_needed()
    box = plot.locator("svg").bounding_box()
    left, right = 54 / 360 * box["width"], (360 - 8) / 360 * box["width"]
    page.mouse.move(box["x"] + left + (right - left) * 0.62, box["y"] + box["height"] / 2)  # nearest to 6 of 10 steps
    assert values.text_content() == "iteration 7:1.5"
    plot.focus()
    for key, iteration in (("ArrowLeft", 6), ("Home", 1), ("ArrowLeft", 1), ("ArrowRight", 2), ("End", 11)):
        page.keyboard.press(key)
        assert values.text_content() == f"iteration {iteration}:{0.25 * (iteration - 1):g}"
        assert plot.get_attribute("aria-valuetext") == f"iteration {iteration}: {0.25 * (iteration - 1):g}"
    parts = page.locator("#charts figure").nth(1).locator(".values")
    assert parts.text_content() == "iteration 11:score 2.5intent 1.25length 1.25"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert noticed == []


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


def test_two_runs_are_overlaid_with_the_settings_in_which_they_differ(opened):
    page, noticed = opened([record("runs/a", 0.25), record("runs/b", 0.5)])
    assert page.locator("#verdict h2").all_text_contents() == ["runs/a", "runs/b"]
    figure = page.locator("#charts figure").first
    assert figure.locator("polyline").count() == 2
    assert figure.locator(".values").text_content() == "iteration 11:runs/a 2.5runs/b 5"
    assert page.locator("#differences").is_visible()
    assert page.locator("#differences tbody td").all_text_contents() == ["lr", "0.25", "0.5"]
    assert page.locator("#samples thead th").all_text_contents() == [
        "last turns",
        "runs/a: after",
        "runs/b: after",
        "a person's reply",
    ]
    assert noticed == []
