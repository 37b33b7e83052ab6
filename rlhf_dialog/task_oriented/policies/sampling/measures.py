"""What a policy is worth: success, reward and turns of whole dialogues, with 95 % intervals, and beside other policies."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_dialog.evaluation.dialogues import count_verdicts, with_count
from rlhf_dialog.evaluation.intervals import Interval, difference, interval, mean_statistic
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
    numbers = collect_numbers(episodes)
    return with_count({name: interval(mean_statistic(x)) for name, x in numbers.items()}, numbers["success"])


def compare_dialogues(before: Sequence[Episode], after: Sequence[Episode]) -> dict[str, Interval]:
    """The intervals of after - before on the same dialogues, which are resampled in pairs."""
    old, new = collect_numbers(before), collect_numbers(after)
    return {name: difference(mean_statistic(old[name]), mean_statistic(new[name])) for name in old if name in new}
