import pytest

from rlhf_dialog.data.sources.text import decode, text_lines
from rlhf_dialog.errors import UserError


def test_the_byte_order_mark_is_no_text():
    assert decode(b"\xef\xbb\xbfDu\xc3\xa9 ?", "a.txt") == "Dué ?"


def test_a_byte_that_is_not_utf8_is_named_with_its_place():
    with pytest.raises(
        UserError, match=r"^a\.txt, line 2: byte 0xe9 at column 3 is not UTF-8; save the file as UTF-8$"
    ):
        decode(b"Yes .\nDu\xe9 ?\n", "a.txt")


def test_lines_are_stripped_and_the_last_may_end():
    assert text_lines(b" Hi . \r\nYes .\n", "a.txt") == ["Hi .", "Yes ."]


@pytest.mark.parametrize(
    ("data", "message"), [(b"", "a.txt: the file is empty"), (b"Hi .\n\nYes .", "a.txt, line 2: the line is blank")]
)
def test_a_text_without_lines_and_a_blank_line_are_refused(data, message):
    with pytest.raises(UserError, match=message):
        text_lines(data, "a.txt")
