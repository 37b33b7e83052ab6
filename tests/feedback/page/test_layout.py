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


def test_braces_of_the_style_are_closed():
    assert CSS.count("{") == CSS.count("}")
