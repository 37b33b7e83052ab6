"""What happens often on a page's server is one line of the log a minute."""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)
MINUTE = 60.0


class Tally(logging.Filter):
    """What happens often is one line a minute, with its number; as a filter, also what another logger warns of."""

    def __init__(self, warn: Callable[[str], None] = logger.warning):
        super().__init__()
        self._warn, self._numbers = warn, dict[str, int]()

    def add(self, what: str) -> None:
        """It has happened; call it in the event loop. `what` is one of few texts."""
        if what in self._numbers:
            self._numbers[what] += 1
        else:
            self._warn(what)
            self._wait(what)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the logger itself writes this: what is not a warning, or has a traceback."""
        if record.levelno < logging.WARNING or record.exc_info:
            return True
        self.add(record.getMessage())
        return False

    def _wait(self, what: str) -> None:
        self._numbers[what] = 0
        asyncio.get_running_loop().call_later(MINUTE, self._report, what)

    def _report(self, what: str) -> None:
        if number := self._numbers.pop(what):
            self._warn(f"{what} ({number:,} times in the last minute)")
            self._wait(what)
