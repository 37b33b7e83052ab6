"""How much one person, and all of them together, may ask of a bot's page or API. Nothing of it leaves the memory."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.settings import ApiKeys, PageKeys

MINUTE, DAY = 60.0, 86400.0


class RateExceeded(UserError):
    """More than one person, or all together, may do; `seconds` until it is allowed again."""

    def __init__(self, what: str, seconds: float):
        super().__init__(f"{what}; wait {_duration(seconds)}")
        self.seconds = seconds


class Bucket:
    """Tokens that come back with time: at most `size`, all of them after `seconds`."""

    def __init__(self, size: int, seconds: float, clock: Callable[[], float] = time.monotonic):
        self.size, self.seconds, self._clock = size, seconds, clock
        self._tokens, self._then = float(size), clock()

    def wait(self) -> float:
        """Seconds until there is a token, 0 when there is one."""
        now = self._clock()
        self._tokens = min(self.size, self._tokens + (now - self._then) * self.size / self.seconds)
        self._then = now
        return 0.0 if self._tokens >= 1 else (1 - self._tokens) * self.seconds / self.size

    def take(self) -> None:
        """Use a token; call it when `wait` is 0."""
        self._tokens -= 1


class Rates:
    """Counts what people do, by kind: messages, ratings, looks. Threads may share it."""

    MAX_PEOPLE = 10_000  # whose counts are kept; beyond them those that rested longest are dropped

    def __init__(self, limits: PageKeys | ApiKeys, clock: Callable[[], float] = time.monotonic, keys: str = "page"):
        """`keys`: how the names of its keys begin: page, api."""
        self._limits, self._clock, self._keys = limits, clock, keys
        times = getattr(limits, f"{keys}_times_in_all")
        self._all = {kind: self._buckets(kind, times) for kind in ("messages", "ratings", "looks")}
        self._people: OrderedDict[tuple[str, str], list[Bucket]] = OrderedDict()
        self._lock = threading.Lock()

    def count(self, kind: str, person: str) -> None:
        """Count one thing that a person does. Raises RateExceeded, and counts nothing, when it is one too many."""
        with self._lock:
            buckets = self._people.setdefault((kind, person), [])
            buckets.extend(self._buckets(kind) if not buckets else [])
            self._people.move_to_end((kind, person))
            if wait := max(bucket.wait() for bucket in buckets):
                raise RateExceeded("that is faster than one person may ask here", wait)
            if wait := max(bucket.wait() for bucket in self._all[kind]):
                raise RateExceeded("too many people ask here at the moment", wait)
            for bucket in (*buckets, *self._all[kind]):
                bucket.take()
            if len(self._people) > self.MAX_PEOPLE:
                self._people.popitem(last=False)

    def _buckets(self, kind: str, times: int = 1) -> list[Bucket]:
        a_minute, a_day = (getattr(self._limits, f"{self._keys}_{kind}_a_{period}") for period in ("minute", "day"))
        return [Bucket(a_minute * times, MINUTE, self._clock), Bucket(a_day * times, DAY, self._clock)]


def check_length(text: str, limits: PageKeys, what: str) -> str:
    """The text with plain line ends. Raises UserError when it is longer than a message may be."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > limits.page_message_chars:
        raise UserError(f"{what} has {len(text):,} characters; shorten it to {limits.page_message_chars:,}")
    return text


def _duration(seconds: float) -> str:
    """`8 seconds`, `12 minutes`, `3 hours`: rounded up."""
    size, name = (3600, "hour") if seconds > 3600 else (60, "minute") if seconds > 60 else (1, "second")
    number = max(1, math.ceil(seconds / size))
    return f"{number} {name}{'s' * (number > 1)}"
