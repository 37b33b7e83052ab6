"""Systems of a table: their training seeds and draws as statistics, from the files of their rows. S seeds, N prompts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.dailydialog.numbers import ABOUT, BLOCK, POOLED, UNITS, RowFile
from experiments.seed_intervals import difference, interval
from rlhf_dialog.evaluation.intervals import Array, Interval, Statistic, mean_statistic, ratio
from rlhf_dialog.metrics.acts import macro_f1
from rlhf_dialog.metrics.overlap import corpus_bleu

POOLED_VALUES = {"judge_macro_f1": macro_f1, "sacrebleu": corpus_bleu, "sacrebleu_eou": corpus_bleu}
Arrays = dict[str, Any]


@dataclass(frozen=True)
class System:
    """A system at one temperature: for each training seed the arrays of its draws."""

    title: str
    seeds: list[list[Arrays]]

    @classmethod
    def read(cls, title: str, folder: Path, names: Sequence[Sequence[str]]) -> "System":
        """names: for each seed those of its rows."""
        return cls(title, [[RowFile(folder, name).read() for name in some] for some in names])

    def statistic(self, metric: str) -> Statistic | None:
        """A metric over prompts and seeds, each prompt with the mean of its draws; None where the rows do not have it."""
        first = self.seeds[0][0]
        units = first.get(UNITS)
        if metric in first:
            values = self._mean(metric)
            return replace(mean_statistic(_flat(values)), units=units)
        if f"{BLOCK}{metric}" in first:
            return mean_statistic(_flat(self._mean(f"{BLOCK}{metric}")))
        if f"{POOLED}{metric}" in first:
            return Statistic(_flat(self._mean(f"{POOLED}{metric}")), POOLED_VALUES.get(metric, ratio), units)
        return None

    def _mean(self, key: str) -> Array:
        """The means over the draws that have it, (S, N) or (S, N, k)."""
        return np.stack([np.mean([arrays[key] for arrays in draws if key in arrays], axis=0) for draws in self.seeds])

    def interval(self, metric: str) -> Interval | None:
        statistic = self.statistic(metric)
        return None if statistic is None else interval(statistic)

    def point(self, metric: str) -> float | None:
        statistic = self.statistic(metric)
        return None if statistic is None else statistic.point

    @property
    def seconds(self) -> float:
        """Of one row: to draw its replies and to measure them."""
        return float(np.mean([arrays[f"{ABOUT}seconds"] for draws in self.seeds for arrays in draws]))


def change(before: System, after: System, metric: str) -> Interval | None:
    """After - before, on the same prompts."""
    pair = before.statistic(metric), after.statistic(metric)
    return None if pair[0] is None or pair[1] is None else difference(pair[0], pair[1])


def _flat(values: Array) -> Array:
    """One seed without its axis."""
    return values if len(values) > 1 else values[0]
