"""The guard of a run: its reward rises on validation prompts while a judge that it never saw falls, or a sign of decay shows.

A reward that stands for something else rises at first with what it stands for, and later against it (Gao et al. 2022,
arXiv 2210.10760). N prompts, the same in every validation.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
WINDOW = 3  # validations that are compared: the last with the first of them
ERRORS = 2.0  # a change counts that is larger than so many standard errors
FACTOR = 2.0  # by which the KL coefficient rises and its target falls
# Of the first validation's value; the KL per token is measured in units of its target.
BOUNDS = {
    "distinct-2, of the first validation's": (0.6, math.inf),
    "words a reply, of the first validation's": (0.5, 2.0),
    "entropy, of the first validation's": (0.3, 3.0),
    "KL, of its target": (-math.inf, 4.0),  # an estimate, which may be below 0
}
DISTINCT, WORDS, ENTROPY, KL = BOUNDS


@dataclass(frozen=True)
class Limit:
    """One measure, and its limit: `at_most`, else at least."""

    name: str
    value: float
    limit: float
    at_most: bool

    @property
    def passed(self) -> bool:
        """Whether it is within its limit; what is not a number is not."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def __str__(self) -> str:
        bound = f"{'at most' if self.at_most else 'at least'} {self.limit:g}"
        return f"{self.name} {self.value:.3g} ({bound}{'' if self.passed else ': FAILED'})"

    def as_json(self) -> dict[str, Any]:
        value = self.value if math.isfinite(self.value) else None
        return asdict(self) | {"value": value, "passed": self.passed}


@dataclass(frozen=True)
class Change:
    """The mean change of a number between two validations, over the prompts that have it in both, and its standard error."""

    mean: float
    error: float

    @property
    def is_rise(self) -> bool:
        return self.mean > ERRORS * self.error

    @property
    def is_fall(self) -> bool:
        return -self.mean > ERRORS * self.error

    def __str__(self) -> str:
        return f"{self.mean:+.3g} (standard error {self.error:.2g})"


def change(first: Array, last: Array) -> Change:
    """The change from `first` (N) to `last` (N), prompt by prompt; NaN where fewer than two prompts have both."""
    difference = last - first
    difference = difference[np.isfinite(difference)]
    if len(difference) < 2:
        return Change(math.nan, math.nan)
    return Change(float(difference.mean()), float(difference.std(ddof=1) / math.sqrt(len(difference))))


@dataclass(frozen=True)
class Look:
    """What one validation found: N scores, N numbers of the judge (None without one), and the signs of BOUNDS by name."""

    iteration: int
    score: list[float]
    judge: list[float] | None
    signs: dict[str, float]


@dataclass(frozen=True)
class Alarm:
    """Why, in a sentence, and the first iteration of the validations that were compared; `is_judged`: the judge fell."""

    sentence: str
    since: int
    is_judged: bool


class Guard:
    """Compares the last WINDOW validations. Its state is JSON, so that a resumed run raises the same alarms."""

    def __init__(self, judge: str | None = None):
        """`judge` is its name in sentences."""
        self.judge = judge
        self.looks: list[Look] = []
        self.first: dict[str, float] = {}  # the signs of the first validation
        self.said: list[str] = []  # signs that were warned of
        self.num_raised = 0
        self.last: tuple[Change | None, Change | None] = (None, None)  # of score and judge, in the newest window

    def add(self, look: Look) -> Alarm | None:
        """Take a validation in; returns an alarm, after which the next one needs WINDOW validations again."""
        self.first = self.first or look.signs
        self.looks = [*self.looks, look][-WINDOW:]
        score, judge = self.last = self._changes()
        if score is None or not score.is_rise:
            return None
        since, alarm = self.looks[0].iteration, None
        between = f"from iteration {since} to {look.iteration} the score changed by {score}"
        if judge is not None and judge.is_fall:
            alarm = Alarm(f"{between} but the judge {self.judge} by {judge}, on the same prompts", since, True)
        elif decayed := [one for one in self._limits(look) if not one.passed and one.name not in self.said]:
            self.said += [one.name for one in decayed]
            alarm = Alarm(f"{between}, and there is a sign of decay: {', '.join(map(str, decayed))}", since, False)
        if alarm is not None:
            self.looks = []
        return alarm

    def _changes(self) -> tuple[Change | None, Change | None]:
        """Of score and judge over the window; None while it is not full, and without a judge."""
        if len(self.looks) < WINDOW:
            return None, None
        first, last = self.looks[0], self.looks[-1]
        judge = None
        if first.judge is not None and last.judge is not None:
            judge = change(np.asarray(first.judge), np.asarray(last.judge))
        return change(np.asarray(first.score), np.asarray(last.score)), judge

    def _limits(self, look: Look) -> list[Limit]:
        """The signs as multiples of the first validation's, each with both its limits."""
        limits = []
        for name, (low, high) in BOUNDS.items():
            base = 1.0 if name == KL else self.first.get(name, math.nan)
            if name in look.signs and math.isfinite(base) and base:
                value = look.signs[name] / base
                limits.append(Limit(name, value, *((high, True) if value > high else (low, False))))
        return limits

    def state_dict(self) -> dict[str, Any]:
        """JSON; a number that is not finite is null in it."""
        looks = [asdict(look) | {"score": _as_json(look.score), "judge": _as_json(look.judge)} for look in self.looks]
        return {"looks": looks, "first": self.first, "said": self.said, "num_raised": self.num_raised}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.looks = [
            Look(one["iteration"], _as_floats(one["score"]) or [], _as_floats(one["judge"]), one["signs"])
            for one in state["looks"]
        ]
        self.first, self.said, self.num_raised = state["first"], state["said"], state["num_raised"]


def _as_json(values: list[float] | None) -> list[float | None] | None:
    return None if values is None else [value if math.isfinite(value) else None for value in values]


def _as_floats(values: list[float | None] | None) -> list[float] | None:
    return None if values is None else [math.nan if value is None else value for value in values]
