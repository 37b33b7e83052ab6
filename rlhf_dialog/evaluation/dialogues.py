"""What whole dialogues with an environment are worth: success, reward, turns, and the words of the policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_dialog.data.dialogue import POLICY, Dialogue
from rlhf_dialog.evaluation.intervals import Array, Interval, difference, interval, mean_statistic
from rlhf_dialog.metrics.text import blocked_distinct_n

BLOCK = 100  # replies of which distinct-n is counted


@dataclass(frozen=True)
class Played:
    """A finished dialogue, and what its environment paid for it."""

    dialogue: Dialogue
    reward: float

    @property
    def replies(self) -> list[str]:
        """What the policy said."""
        return [turn.text for turn in self.dialogue.turns if turn.speaker == POLICY]

    @property
    def success(self) -> float:
        """1 or 0 as the environment's last info says; NaN where it says nothing."""
        found = self.dialogue.meta.get("info", {}).get("success")
        return float("nan") if found is None else float(bool(found))


def dialogue_numbers(played: Sequence[Played]) -> dict[str, Array]:
    """For each measure the numbers (N,) of N dialogues: success, reward, turns, words in a reply, and whether it was cut off."""
    numbers = {
        "success": [dialogue.success for dialogue in played],
        "reward": [one.reward for one in played],
        "turns": [float(len(one.replies)) for one in played],
        "words": [float(np.mean([len(text.split()) for text in one.replies])) for one in played],
        "truncated": [float(one.dialogue.truncated) for one in played],
    }
    return {name: np.array(values, dtype=np.float64) for name, values in numbers.items()}


def distinct(played: Sequence[Played]) -> dict[str, Array]:
    """distinct-1 and -2 of blocks of 100 replies: `distinct_1` and `distinct_2` (blocks,)."""
    replies = [text for one in played for text in one.replies]
    return {f"distinct_{n}": np.array(blocked_distinct_n(replies, n, BLOCK)) for n in (1, 2)}


def means(played: Sequence[Played]) -> dict[str, float]:
    """The mean of each measure, NaN where no dialogue has it; with `success_of`, see `count_verdicts`."""
    known = dialogue_numbers(played) | distinct(played)
    return {name: mean_statistic(values).point for name, values in known.items()} | count_verdicts(known["success"])


def count_verdicts(success: Array) -> dict[str, float]:
    """`success_of`, how many of the dialogues say whether they succeeded, where some do and some do not."""
    said = float(np.isfinite(success).sum())
    return {"success_of": said} if 0 < said < len(success) else {}


def measure_dialogues(played: Sequence[Played]) -> dict[str, Interval]:
    """Mean, low and high of each measure; `of` as `with_count` has it."""
    known = dialogue_numbers(played) | distinct(played)
    return with_count({name: interval(mean_statistic(values)) for name, values in known.items()}, known["success"])


def with_count(intervals: dict[str, Interval], success: Array) -> dict[str, Interval]:
    """The intervals; that of success has `of`, how many dialogues say it, where some do not."""
    said = float(np.isfinite(success).sum())
    return intervals | ({"success": intervals["success"] | {"of": said}} if said < len(success) else {})


def cell(interval: Interval | None, form: str) -> str:
    """An interval in a table; empty where there is none."""
    if interval is None or not interval.get("of", 1):
        return "" if interval is None else "not said"
    mean, low, high = (form.format(interval[key]) for key in ("mean", "low", "high"))
    return f"{mean}\n\\[{low}, {high}]" + (f"\nof {interval['of']:g} that say it" if "of" in interval else "")


def compare_dialogues(before: Sequence[Played], after: Sequence[Played]) -> dict[str, Interval]:
    """The intervals of after - before on the same dialogues, which are resampled in pairs."""
    old, new = dialogue_numbers(before), dialogue_numbers(after)
    return {name: difference(mean_statistic(old[name]), mean_statistic(new[name])) for name in old}


def transcript(dialogue: Dialogue) -> list[str]:
    """The dialogue as lines, each with its speaker; in the end what the environment's last info says of goal and success."""
    count = len(dialogue.prompt_turns)
    before = [("agent" if (count - i) % 2 == 0 else "user", text) for i, text in enumerate(dialogue.prompt_turns)]
    after = [("agent" if turn.speaker == POLICY else "user", turn.text) for turn in dialogue.turns]
    info: dict[str, Any] = dialogue.meta.get("info", {})
    known = [f"{name}: {info[name]}" for name in ("goal", "success") if name in info]
    return [f"{speaker}: {text}" for speaker, text in [*before, *after]] + [f"({', '.join(known)})"] * bool(known)
