"""How the page looks, as far as it can be seen without a browser."""

import re

import pytest

pytest.importorskip("gradio", reason="the page needs gradio")

from rlhf_dialog.feedback.page.layout import CSS, LOOKS


def test_nothing_of_the_looks_is_loaded_from_elsewhere():
    look = LOOKS["theme"]
    assert not any("//" in sheet for sheet in look._stylesheets)
    css = (CSS + look._get_theme_css()).replace("xmlns='http://www.w3.org/2000/svg'", "")  # a name, not an address
    assert not re.search(r"@import|https?:|url\(['\"]?//", css.replace('xmlns="http://www.w3.org/2000/svg"', ""))


def test_on_a_phone_the_message_stays_in_sight_and_likes_come_first():
    phone = CSS[CSS.index("@media (max-width: 700px)") :]
    assert "#message {position: sticky; bottom: 0;" in phone
    orders = [int(re.findall(rf"aria-label\^={name}\] \{{order: (-?\d)\}}", CSS)[0]) for name in ("Like", "Dislike")]
    assert orders == [-2, -1]
    assert ".message-buttons-left :is(button > div, svg) {width: 20px; height: 20px}" in CSS


def test_braces_of_the_style_are_closed():
    assert CSS.count("{") == CSS.count("}")
