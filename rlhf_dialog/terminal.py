"""What is shown to a person. Text of others (data, replies, names, files) must not steer the terminal that shows it."""

import logging
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from rich import console
from rich.segment import Segment
from rich.text import Text

log_once = cache(logging.getLogger(__name__).info)  # each text one time in a process
T = TypeVar("T")
# C0 but tab and newline, DEL, C1, marks and overrides of the direction of text, line separators, halves of characters
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with its control characters written out; tabs and line ends stay.

    >>> visible("\\x1b[2J")
    '\\\\x1b[2J'
    """
    return STEERING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def message(text: str) -> str:
    """As `visible`, for several lines: all but the first are indented, so that none of them can pass for another message."""
    return re.sub(r"\n(?=\S)", "\n  ", visible(text))


@contextmanager
def quieter(name: str, level: int) -> Iterator[None]:
    """Inside the block, the logger of this name says nothing below `level`."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def make_visible(record: logging.LogRecord) -> bool:
    """A filter for the handler of a library that logs other people's text: without colours, and as `visible`."""
    record.msg, record.args = visible(re.sub(r"\x1b\[[0-9;]*m", "", record.getMessage())), None
    return True


class TimeLeft:
    """How long the rest of something takes at the speed so far, from the shares that are done."""

    def __init__(self) -> None:
        self.first: tuple[float, float] | None = None  # the first share, and when it was

    def text(self, share: float) -> str:
        """`2 min left`; empty before anything is done since the first share, and at the end. `share`: from 0 to 1."""
        now = time.monotonic()
        first_share, start = self.first = self.first or (share, now)
        done = share - first_share
        if done <= 0 or share >= 1:
            return ""
        return f"{lasting((now - start) * (1 - share) / done)} left"


def lasting(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def each_logged(items: Sequence[T], title: str, logger: logging.Logger, interval: float = 60.0) -> Iterator[T]:
    """The items; every `interval` seconds a line of the log says how many are done, and how long the rest takes."""
    left, last_logged = TimeLeft(), time.monotonic()
    left.text(0.0)
    for number, item in enumerate(items):
        if number and time.monotonic() - last_logged >= interval:
            last_logged, share = time.monotonic(), number / len(items)
            logger.info("%s: %d of %d, %.0f %%, %s", title, number, len(items), 100 * share, left.text(share))
        yield item


class Console(console.Console):
    """A console of rich that shows text as `visible` does; its own colours and cursor movements are not text."""

    def on_broken_pipe(self) -> None:
        """Let the error pass: the command decides how it ends."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:  # before it is measured
        return super().render_str(visible(text), **options)

    def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*args, **options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
