"""One row of an audit: what N replies are paid, beside the true replies to the same prompts, with 95 % intervals."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.evaluation import intervals
from rlhf_dialog.evaluation.audit.scoring import ScoreTable
from rlhf_dialog.evaluation.intervals import Array, Interval, Numbers


def summary_row(table: ScoreTable, true: ScoreTable, units: Numbers, seed: int) -> dict[str, Any]:
    """What replies are paid, and how it differs from the true ones; `units` (N,): the dialogue of each prompt.

    `paid`, `difference`, `more` (the share of prompts where it is paid more) and, of each judge, `mean` and `difference` are
    intervals, on the prompts that have both numbers; `parts` are means.
    """
    return {
        "num_prompts": int(np.isfinite(table.score).sum()),
        **_compare(table.score, true.score, units, seed),
        "more": _mean(np.where(_both(table.score, true.score), table.score > true.score, np.nan), units, seed),
        "parts": {name: _plain_mean(values) for name, values in table.parts.items()},
        "judges": {
            name: _compare(values, true.judges[name], units, seed, "mean") for name, values in table.judges.items()
        },
    }


def _compare(values: Array, true: Array, units: Numbers, seed: int, name: str = "paid") -> dict[str, Interval]:
    known = _both(values, true)
    here, there = (
        replace(intervals.mean_statistic(np.where(known, some, np.nan)), units=units) for some in (values, true)
    )
    return {name: _mean(values, units, seed), "difference": intervals.difference(there, here, seed)}


def _mean(values: Array, units: Numbers, seed: int) -> Interval:
    return intervals.interval(replace(intervals.mean_statistic(values), units=units), seed)


def _plain_mean(values: Array) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _both(values: Array, true: Array) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = np.isfinite(values) & np.isfinite(true)
    return known
