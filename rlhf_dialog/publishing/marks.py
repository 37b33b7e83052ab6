"""Text of others in a card: it stays where it is put, and makes no heading, cell, link or fence of its own."""

import re
from typing import Any

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def code(value: Any) -> str:
    r"""The value as a code span on one line, with control characters as escapes.

    >>> code("<EOU>\n")
    '`<EOU>\\n`'
    """
    text = CONTROL.sub(lambda match: repr(match[0])[1:-1], str(value))
    mark = "`" * (_longest(text) + 1)
    return f"{mark} {text} {mark}" if "`" in text else f"{mark}{text}{mark}"


def cell(value: Any) -> str:
    """`code` for a cell of a table."""
    return code(value).replace("|", r"\|")


def code_block(text: str, language: str) -> str:
    """A block of code whose fence is longer than each row of backticks in it."""
    mark = "`" * max(3, _longest(text) + 1)
    return f"{mark}{language}\n{text}\n{mark}"


def _longest(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
