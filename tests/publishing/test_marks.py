"""Text of others in a card."""

import pytest

from rlhf_dialog.publishing.marks import cell, code, code_block


@pytest.mark.parametrize(
    ("text", "span"),
    [("a", "`a`"), ("a`b", "`` a`b ``"), ("``", "``` `` ```"), ("a\nb\t\x1b", r"`a\nb\t\x1b`"), (3, "`3`")],
)
def test_a_code_span_is_one_line_that_ends_where_it_should(text, span):
    assert code(text) == span


def test_a_cell_has_no_bar_of_its_own():
    assert cell("<|end|>") == r"`<\|end\|>`"


def test_a_fence_is_longer_than_those_in_it():
    assert code_block("a", "yaml") == "```yaml\na\n```"
    assert code_block("````", "") == "`````\n````\n`````"
