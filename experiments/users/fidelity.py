"""How far simulated users differ from real ones: what they say is measured in the same way, and the difference is named.

N turns of D dialogues, F features of a turn. Every interval resamples dialogues (`intervals`); the two sides are independent.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.evaluation.intervals import Statistic, interval, mean_statistic, unpaired_difference
from rlhf_dialog.metrics.text import blocked_distinct_n

Array = NDArray[np.float64]
BLOCK = 100  # turns: distinct-n falls with the number of texts
OTHER = "other"  # a turn without an act that the real data annotates
SMALL = 0.2  # of Cohen 1988, as the other sizes
SIZES = ((0.8, "large"), (0.5, "medium"), (SMALL, "small"))
TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class UserTurns:
    """The user's side of one dialogue: its turns, and the acts of each, such as `inform food`; None where acts are unknown."""

    turns: list[str]
    acts: list[list[str]] | None = None


def tokens(text: str) -> list[str]:
    """Words in lower case, and every mark by itself, so that it makes no difference how a data set is tokenised.

    >>> tokens("I don’t mind , really."), tokens("i don ' t mind, really .")
    (['i', 'don', "'", 't', 'mind', ',', 'really', '.'], ['i', 'don', "'", 't', 'mind', ',', 'really', '.'])
    """
    return TOKEN.findall(text.lower().replace("’", "'"))


def words(text: str) -> list[str]:
    """The tokens without marks, but for the question mark: who typed or transcribed a dialogue decides where marks are.

    >>> words("Well, is it far?")
    ['well', 'is', 'it', 'far', '?']
    """
    return [token for token in tokens(text) if token == "?" or token[0].isalnum()]


@dataclass
class Measures:
    """What was measured on one side. Each measure is a mean over dialogues, turns or blocks of turns.

    values: name -> its values (N,); units: the number of the dialogue that each value belongs to, None: each is one by itself
    """

    values: dict[str, Array]
    units: dict[str, NDArray[np.int64] | None]

    def statistic(self, name: str) -> Statistic:
        """The mean of a measure."""
        mean = mean_statistic(self.values[name])
        return Statistic(mean.rows, mean.value, self.units[name])


def measured(talks: Sequence[UserTurns], labels: Sequence[str]) -> Measures:
    """Length, questions, variety, repetition, and the share of turns with each of the acts `labels`."""
    owners = np.repeat(np.arange(len(talks)), [len(talk.turns) for talk in talks])
    turns = [turn for talk in talks for turn in talk.turns]
    said = Counter(" ".join(words(turn)) for turn in turns)
    per_turn: dict[str, Iterable[float]] = {
        "words in a turn": (len(words(turn)) - turn.count("?") for turn in turns),
        "turns that ask": ("?" in turn for turn in turns),
        "turns that occur more than once": (said[" ".join(words(turn))] > 1 for turn in turns),
    }
    for label in labels:
        per_turn[f"turns with {label}"] = [label in acts for talk in talks for acts in talk.acts or []]
    values = {"turns in a dialogue": _array(len(talk.turns) for talk in talks)}
    values |= {name: _array(found) for name, found in per_turn.items()}
    units: dict[str, NDArray[np.int64] | None] = dict.fromkeys(values, owners)
    units["turns in a dialogue"] = None
    for n in (1, 2):
        values[f"distinct-{n}"] = _array(blocked_distinct_n([" ".join(words(turn)) for turn in turns], n, BLOCK))
        units[f"distinct-{n}"] = None
    return Measures(values, units)


def labels_of(real: Sequence[UserTurns], simulated: Sequence[UserTurns]) -> list[str]:
    """The acts of the real users, most frequent first; none when one side does not know its acts."""
    if any(talk.acts is None for talk in (*real, *simulated)):
        return []
    found = Counter(chain.from_iterable(chain.from_iterable(talk.acts or [] for talk in real)))
    return [label for label, _ in found.most_common()]


def compared(real: Measures, simulated: Measures, seed: int = 0) -> dict[str, dict[str, Any]]:
    """For each measure both means and their difference with 95 % intervals, and the difference in standard deviations (d).

    The largest |d| first; distinct-n last, because blocks of turns differ less than turns, so its d means something else.
    """
    found = {name: _compared(real, simulated, name, seed) for name in real.values}
    return dict(sorted(found.items(), key=lambda item: (item[0].startswith("distinct"), -abs(item[1]["d"]))))


def _compared(real: Measures, simulated: Measures, name: str, seed: int) -> dict[str, Any]:
    before, after = real.statistic(name), simulated.statistic(name)
    difference = unpaired_difference(before, after, seed)
    spread = float(np.sqrt(np.mean([np.var(side.values[name]) for side in (real, simulated)])))
    d = difference["mean"] / spread if spread else float(np.sign(difference["mean"])) * np.inf
    return {
        "real": interval(before, seed),
        "simulated": interval(after, seed),
        "difference": difference,
        "d": d if difference["mean"] else 0.0,
    }


def sentences(name: str, measures: dict[str, dict[str, Any]], found: dict[str, Any]) -> list[str]:
    """Where the simulated users `name` differ from real ones, in plain words: `compared` and `two_sample.distinguished`."""
    unsure = [part["low"] <= 0.5 <= part["high"] for part in (found["turns"], found["dialogues"])]
    verdict = "does not distinguish" if all(unsure) else "distinguishes"
    shares = " and ".join(f"{kind} in {percent(found[kind])}" for kind in ("turns", "dialogues"))
    lines = [f"A classifier {verdict} {name} from real users: it is right about {shares} (50 % is chance)."]
    differing = {key: one for key, one in measures.items() if abs(one["d"]) >= SMALL and _is_sure(one["difference"])}
    for key, one in differing.items():
        more = ("fewer", "more", "a lower", "a higher")[(one["d"] > 0) + 2 * key.startswith("distinct")]
        size = next(word for least, word in SIZES if abs(one["d"]) >= least)
        lines.append(
            f"{name} has {more} {key}: {shown(key, one['simulated'])}, real users {shown(key, one['real'])} "
            f"(d = {one['d']:+.2f}, {size})."
        )
    equal = [key for key in measures if key not in differing]
    return [*lines, f"About equal (|d| below {SMALL}, or the interval holds 0): {', '.join(equal) or 'nothing'}."]


def shown(name: str, bounds: dict[str, float]) -> str:
    """A mean with its interval; shares as percentages."""
    if name in ("turns in a dialogue", "words in a turn"):
        return "{mean:.2f} [{low:.2f}, {high:.2f}]".format(**bounds)
    return percent(bounds)


def percent(bounds: dict[str, float]) -> str:
    """A share with its interval."""
    mean, low, high = (100 * bounds[key] for key in ("mean", "low", "high"))
    return f"{mean:.1f} % [{low:.1f}, {high:.1f}]"


def _is_sure(bounds: dict[str, float]) -> bool:
    return not bounds["low"] <= 0 <= bounds["high"]


def _array(values: Iterable[float]) -> Array:
    return np.fromiter(values, dtype=np.float64)
