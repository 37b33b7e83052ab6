"""What a policy is worth: success, reward and turns of whole dialogues, with 95 % intervals, and beside other policies."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_dialog.evaluation.dialogues import count_verdicts, with_count
from rlhf_dialog.evaluation.intervals import Interval, Statistic, difference, interval, mean_statistic
from rlhf_dialog.task_oriented.policies.base import Episode

VALIDATION_SEED, TEST_SEED = 2**30, 2**31  # of dialogues that no run is trained on


def collect_numbers(episodes: Sequence[Episode]) -> dict[str, Any]:
    """For each measure the numbers (N,) of N dialogues: success (NaN where it is not said), reward, turns; where they are known,
    precision, recall and F1 of what was informed, and the book rate, NaN for a dialogue without requests or a booking."""
    numbers = {
        "success": [float("nan") if episode.success is None else float(episode.success) for episode in episodes],
        "reward": [episode.total_reward for episode in episodes],
        "turns": [float(episode.start + len(episode)) for episode in episodes],
    }
    if all("inform" in episode.info for episode in episodes):
        numbers |= {f"inform_{key}": [e.info["inform"][key] for e in episodes] for key in ("precision", "recall", "f1")}
    if all("book_rate" in episode.info for episode in episodes):
        numbers["book_rate"] = [episode.info["book_rate"] for episode in episodes]
    return {name: np.array(values, dtype=np.float64) for name, values in numbers.items()}


def means(episodes: Sequence[Episode]) -> dict[str, float]:
    """The mean of success, reward and turns, NaN without dialogues; where some do not say it, `success_of` that do."""
    numbers = collect_numbers(episodes)
    finite = {name: numbers[name][np.isfinite(numbers[name])] for name in ("success", "reward", "turns")}
    averages = {name: float(values.mean()) if len(values) else float("nan") for name, values in finite.items()}
    return averages | count_verdicts(numbers["success"])


def measure_dialogues(episodes: Sequence[Episode]) -> dict[str, Interval]:
    """Mean, low and high of each measure."""
    intervals = {name: interval(statistic) for name, statistic in _statistics(episodes).items()}
    return with_count(intervals, collect_numbers(episodes)["success"])


def compare_dialogues(before: Sequence[Episode], after: Sequence[Episode]) -> dict[str, Interval]:
    """The intervals of after - before on the same dialogues, which are resampled in pairs."""
    old, new = _statistics(before), _statistics(after)
    return {name: difference(old[name], new[name]) for name in old if name in new}


def _statistics(episodes: Sequence[Episode]) -> dict[str, Statistic]:
    return {name: mean_statistic(values) for name, values in collect_numbers(episodes).items()}
