"""How much one person, and all of them together, may ask of a bot's page. Nothing of it leaves the memory."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from rlhf_dialog.errors import UserError

MINUTE, DAY = 60.0, 86400.0


@dataclass(frozen=True)
class PageLimits:
    """The limits of a page: what is beyond them is refused with a message, and nothing of it is stored.

    >>> Limits(message_chars=500)
    """

    message_chars: int = 4000  # of a message, a reason or a better answer
    body_bytes: int = 1 << 18  # of one request
    messages: tuple[int, int] = (20, 1000)  # of one person: a minute, a day; `again` counts too
    ratings: tuple[int, int] = (60, 3000)
    looks: tuple[int, int] = (60, 5000)  # opening a dialogue, asking why, the list of dialogues
    times_in_all: int = 15  # all people together may do this many times as much
    # dialogues of one person in memory; the one that rested longest leaves, and can be opened again
    person_talks: int = 5
    talks: int = 200  # dialogues in memory in all


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

    def is_full(self) -> bool:
        """Whether nothing was used lately."""
        self.wait()
        return self._tokens >= self.size


class Rates:
    """Counts what people do, by kind: messages, ratings, looks. Threads may share it."""

    MAX_PEOPLE = 10_000  # whose counts are kept; beyond them those that rested longest are dropped

    def __init__(self, limits: PageLimits, clock: Callable[[], float] = time.monotonic):
        self.limits, self._clock = limits, clock
        self._all = {kind: self._buckets(kind, limits.times_in_all) for kind in ("messages", "ratings", "looks")}
        self._people: OrderedDict[tuple[str, str], list[Bucket]] = OrderedDict()
        self._lock = threading.Lock()

    def count(self, kind: str, person: str) -> None:
        """Count one thing that a person does. Raises UserError, and counts nothing, when it is one too many."""
        with self._lock:
            buckets = self._people.setdefault((kind, person), [])
            buckets.extend(self._buckets(kind) if not buckets else [])
            self._people.move_to_end((kind, person))
            if wait := max(bucket.wait() for bucket in buckets):
                raise UserError(f"that is faster than this page allows; wait {_duration(wait)}")
            if wait := max(bucket.wait() for bucket in self._all[kind]):
                raise UserError(f"too many people use this page at the moment; wait {_duration(wait)}")
            for bucket in (*buckets, *self._all[kind]):
                bucket.take()
            self._forget_resting()

    def _buckets(self, kind: str, times: int = 1) -> list[Bucket]:
        a_minute, a_day = getattr(self.limits, kind)
        return [Bucket(a_minute * times, MINUTE, self._clock), Bucket(a_day * times, DAY, self._clock)]

    def _forget_resting(self) -> None:
        oldest = next(iter(self._people.values()))
        if len(self._people) > self.MAX_PEOPLE or all(bucket.is_full() for bucket in oldest):
            self._people.popitem(last=False)


def check_length(text: str, limits: PageLimits, what: str) -> str:
    """The text with plain line ends. Raises UserError when it is longer than a message may be."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > limits.message_chars:
        raise UserError(f"{what} has {len(text):,} characters; shorten it to {limits.message_chars:,}")
    return text


def _duration(seconds: float) -> str:
    """`8 seconds`, `12 minutes`, `3 hours`: rounded up."""
    for size, name in ((3600, "hour"), (60, "minute"), (1, "second")):
        if seconds > size or size == 1:
            number = max(1, int(-(-seconds // size)))
            return f"{number} {name}{'s' * (number > 1)}"
    raise AssertionError
