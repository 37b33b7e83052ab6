"""The curves of a run for a page: at most so much of them as a screen can show, finite, with the parts that make up the score."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from rlhf_dialog.evaluation.run_page.verdict import Row

Values = list[float | None]
DIGITS = 6
MAX_CURVES = 200  # of one run; a page that gets too large has fewer points
SCORE = "objective/score"
LEFT_OUT = ("iteration", "time_steps", "episodes")
TOLERANCE = 1e-5  # of the score; metrics are means of 32-bit numbers


def number(value: Any) -> float | None:
    """The value with 6 digits; None for what is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")


def groups(num_rows: int, limit: int) -> list[slice]:
    """The rows in at most `limit` groups of neighbours, all of one size but the last.

    >>> groups(7, 3)
    [slice(0, 3, None), slice(3, 6, None), slice(6, 7, None)]
    """
    size = max(math.ceil(num_rows / limit), 1)
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def thin_out(values: Sequence[float | None], limit: int) -> Values:
    """The mean of the known numbers of each group; None for a group that has none."""
    means: Values = []
    for group in groups(len(values), limit):
        numbers = [value for value in values[group] if value is not None and math.isfinite(value)]
        means.append(number(math.fsum(numbers) / len(numbers)) if numbers else None)
    return means


def iterations(rows: Sequence[Row], limit: int) -> list[list[int]]:
    """The first and the last iteration of each group."""
    return [[rows[group][0]["iteration"], rows[group][-1]["iteration"]] for group in groups(len(rows), limit)]


def build_curves(rows: Sequence[Row], limit: int) -> dict[str, Values]:
    """Metric -> its thinned numbers, for every metric that has one, except for seconds and counters."""
    names = dict.fromkeys(name for row in rows for name in row if name not in LEFT_OUT and not name.startswith("time/"))
    curves = {name: thin_out([row.get(name) for row in rows], limit) for name in names}
    shown = {name: values for name, values in curves.items() if any(value is not None for value in values)}
    return dict(list(shown.items())[:MAX_CURVES])


def reward_parts(rows: Sequence[Row], config: dict[str, Any]) -> dict[str, Values]:
    """The weighted parts of the score, one number a row, which add up to it; what no part explains is a part as well.

    Empty for a run whose rewards have no parts.
    """
    part = re.compile("reward/([^/]*)_weighted")
    names = {name: match[1] for row in rows for name in row if (match := part.fullmatch(name))}
    if not names:
        return {}
    parts: dict[str, Values] = {title: [row.get(name) for row in rows] for name, title in names.items()}
    rest = [_less(row.get(SCORE), [row.get(name) for name in names]) for row in rows]
    sizes = [abs(row.get(SCORE) or 0.0) for row in rows]
    if any(abs(value or 0.0) > TOLERANCE * max(size, 1) for value, size in zip(rest, sizes, strict=True)):
        parts[_remainder_title(rest, rows, config)] = rest
    return parts


def _less(score: Any, parts: Iterable[Any]) -> float | None:
    """The score less its parts; None where one of them is unknown."""
    numbers = [score, *parts]
    if any(value is None or not math.isfinite(value) for value in numbers):
        return None
    return score - math.fsum(numbers[1:])


def _remainder_title(names: Values, rows: Sequence[Row], config: dict[str, Any]) -> str:
    penalty = number(config.get("truncation_penalty")) or 0.0
    shares = [number(row.get("response/truncated")) for row in rows]
    is_penalty = all(
        value is None or (share is not None and abs(value + penalty * share) < 1e-3 * max(1, penalty))
        for value, share in zip(names, shares, strict=True)
    )
    return "truncation penalty" if penalty and is_penalty else "the rest (environment, penalties)"
