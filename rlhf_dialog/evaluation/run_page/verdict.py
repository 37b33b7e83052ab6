"""What the metrics of a run say, in words: for each sign its number, whether it is healthy, and what to do.

docs/READING_A_RUN.md shows the signs of signs.yaml. `values` are the finite numbers of one metric, in the order of the
iterations; a quarter of them is what a sign compares.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_dialog.evaluation.gain import MOST, NUM_ITERATIONS, REFERENCE, Gain, quarter_change, recent_gain
from rlhf_dialog.evaluation.intervals import Interval, mean_statistic, unpaired_difference
from rlhf_dialog.yaml_files import parse_yaml

FEW_ITERATIONS, MIN_ITERATIONS, MIN_VALIDATIONS = 4, 12, 4
GROWN = 0.1  # nats per token: a KL below it may grow
# begin the metrics of a judge that the reward does not contain; the second is that of `watch`
JUDGED = ("eval/judge_", "judge/")
Row = dict[str, Any]
MEASURES = {  # how a number is taken from the values of a metric -> how it is said
    "level": "in the last quarter",
    "change": "times the first quarter",
    "growth": "times the third quarter",
    "target": "times `kl_target`",
}


@dataclass(frozen=True)
class Sign:
    """When a metric is healthy and when it is sick, and what to do then.

    With a `measure`, one of MEASURES, it is sick on one `side` of a `limit`, below or above.
    """

    sign: str
    metric: str
    advice: str
    healthy: str = ""
    sick: str = ""
    measure: str = ""
    side: str = ""
    limit: float = 0.0

    @property
    def row(self) -> list[str]:
        """Its row of the table: sign, metric, healthy, sick, what to do."""
        if not self.measure:
            return [self.sign, self.metric, self.healthy, self.sick, self.advice]
        healthy = f"{self.bound} {MEASURES[self.measure]}"
        return [self.sign, self.metric, healthy, f"{self.side} {self.limit:g}", self.advice]

    @property
    def bound(self) -> str:
        return f"at {'least' if self.side == 'below' else 'most'} {self.limit:g}"


@cache
def all_signs() -> dict[str, Sign]:
    """The signs by their names, in the order of the table."""
    rows = parse_yaml((Path(__file__).parent / "signs.yaml").read_text(encoding="utf-8"))
    return {row["sign"]: Sign(**row) for row in rows}


@dataclass(frozen=True)
class Finding:
    """What one sign says of a run: `state` is healthy, sick or open, and `sentence` says why and what to do."""

    sign: str
    state: str
    sentence: str


def verdict(rows: Sequence[Row], config: dict[str, Any]) -> tuple[str, list[Finding]]:
    """A headline, and a finding for each sign that the rows of a metrics.jsonl have; `config` is the run's config.yaml."""
    findings = list(_findings(rows, config))
    reward, *others = findings
    beside = ", ".join(one.sign for one in others if one.state == "sick")
    if reward.state == "healthy":
        right = "The curve is right: the reward rises, and all other signs are healthy; nothing to do."
        return f"The reward rises, but look at this: {beside}." if beside else right, findings
    head = reward.sentence[:-1] if reward.state == "open" else f"The curve is not right: {reward.sign}"
    return f"{head}; look also at this: {beside}." if beside else f"{head}.", findings


def _findings(rows: Sequence[Row], config: dict[str, Any]) -> Iterator[Finding]:
    rewards = next((values for name in ("objective/score", "reward") if (values := finite_values(rows, name))), [])
    group_size = config.get("num_responses_per_prompt")
    group_size = group_size if isinstance(group_size, int) and group_size > 0 else 1  # a found folder's may be anything
    has_errors = not {"objective/gain", "objective/score_se"}.isdisjoint(rows[-1])
    yield _judge_reward(rows, rewards, group_size) if has_errors else _reward(rewards)
    rises = len(rewards) >= MIN_ITERATIONS and score_change(rewards)[2]["low"] > 0
    names = (f"eval/{config.get('eval_metric', 'score')}", "eval/score", "eval/reward")
    validation = next((name for name in names if finite_values(rows, name)), None)
    if validation:
        yield _validation(rows, validation, rises)
    for name in dict.fromkeys(name for row in rows for name in row if name.startswith(JUDGED)):
        if len(values := finite_values(rows, name)) >= MIN_VALIDATIONS:
            judge = f"The held-out judge {name.removeprefix(JUDGED[0]).removeprefix(JUDGED[1])}"
            yield _trend("held-out judge", judge, values, "held-out judge falls", "", rises)
    for metric in dict.fromkeys(one.metric for one in all_signs().values() if one.measure):
        values = finite_values(rows, metric)
        if len(values) >= MIN_ITERATIONS:
            yield from _check_limits(metric, values, kl_target(config))


def finite_values(rows: Sequence[Row], name: str) -> list[float]:
    """The finite numbers of a metric, in the order of the rows, without those that are larger than any run's."""
    values = (row.get(name) for row in rows)
    return [float(value) for value in values if value is not None and abs(value) < MOST]


def kl_target(config: dict[str, Any]) -> float | None:
    """The KL that the run aims for; None for a fixed coefficient, and where the configuration says none."""
    target = config.get("kl_target")
    if isinstance(target, bool) or not isinstance(target, int | float) or not math.isfinite(target):
        return None
    return float(target) if target > 0 and config.get("kl_rate") != 0 else None


def score_change(values: Sequence[float], share: int = 4) -> tuple[float, float, Interval]:
    """Mean of the first part (1 of `share`) of the values, mean of the last, and the 95 % interval of their difference."""
    size = len(values) // share
    first, last = (mean_statistic(np.array(part)) for part in (values[:size], values[-size:]))
    return first.point, last.point, unpaired_difference(first, last)


def _trend(
    name: str, subject: str, values: Sequence[float], falls: str, flat: str, rises: bool = False, more: str = ""
) -> Finding:
    """What the interval of a change says: the sign `falls` below 0, `flat` around 0 (none: that is healthy); `name` above.

    rises: whether the reward does
    """
    first, last, change = score_change(values, 4 if len(values) >= MIN_ITERATIONS else 2)
    text = f"{change['mean']:+.3g} [{change['low']:+.3g}, {change['high']:+.3g}]"
    text += more or f", from {first:.3g} to {last:.3g}"
    if change["low"] > 0:
        return Finding(name, "healthy", f"{subject} rises{' with the reward' * rises}: {text}.")
    if change["high"] < 0:
        return _sick(falls, f"{subject} falls{' while the reward rises' * rises}: {text}")
    if not flat:
        return Finding(name, "healthy", f"{subject} does not fall: {text}.")
    return _sick(flat, f"{subject} does not rise: {text}")


def _sick(sign: str, sentence: str) -> Finding:
    return Finding(sign, "sick", f"{sentence}; {all_signs()[sign].advice}.")


def _reward(values: Sequence[float]) -> Finding:
    if len(values) < MIN_ITERATIONS:
        sentence = f"Iterations with a reward: {len(values)} of the {MIN_ITERATIONS} that it takes."
        return Finding("reward", "open", sentence)
    return _trend("reward", "The reward", values, "reward falls", "reward does not rise")


def _judge_reward(rows: Sequence[Row], values: Sequence[float], group_size: int) -> Finding:
    """The gain over the reference; in a short run, and where it is unknown, the change of the score since the first quarter."""
    if len(rows) < FEW_ITERATIONS:
        return Finding("reward", "open", f"{sum(finite_values(rows[-1:], 'episodes')):,.0f} replies so far.")
    gain = recent_gain(rows, group_size) if len(rows) >= NUM_ITERATIONS else None
    if gain and gain.over == REFERENCE:
        return _gain(gain, len(rows))
    change = quarter_change(rows, group_size)
    if change is None:
        return _reward(values)
    sentence = f"{change} from the first quarter of the iterations to the newest"
    sentence += f" ({gain.note})" if gain and gain.note else ""
    if change.low > 0:
        return Finding("reward", "healthy", f"The reward is higher: {sentence}.")
    if change.high < 0:
        return _sick("reward falls", f"The reward is lower: {sentence}")
    return Finding("reward", "open", f"The score's change is {sentence}.")


def _gain(gain: Gain, num_iterations: int) -> Finding:
    """What the newest iterations have gained over the reference."""
    sentence = f"{gain} over {gain.over}, in the newest {gain.num_replies:,} replies"
    sentence += f" ({gain.note})" if gain.note else ""
    if gain.low > 0:
        return Finding("reward", "healthy", f"The reward is higher: {sentence}.")
    if gain.high < 0:
        return _sick("the policy loses", f"The reward is lower: {sentence}")
    if gain.missing_replies:
        sentence += f"; about {gain.missing_replies:,} more replies would show a gain of this size"
    if num_iterations < MIN_ITERATIONS:
        return Finding("reward", "open", f"No gain can be seen yet: {sentence}.")
    return _sick("no gain yet", f"No gain can be seen yet: {sentence}")


def _validation(rows: Sequence[Row], name: str, rises: bool) -> Finding:
    values = finite_values(rows, name)
    if len(values) < MIN_VALIDATIONS:
        sentence = f"Validations: {len(values)} of the {MIN_VALIDATIONS} that it takes; lower `eval_interval`."
        return Finding("validation", "open", sentence)
    best = max((row for row in rows if finite_values([row], name)), key=lambda row: float(row[name]))
    more = f", best {best[name]:.3g} after iteration {best['iteration']}"
    return _trend("validation", name, values, "validation falls", "validation does not rise", rises, more)


def _check_limits(metric: str, values: Sequence[float], target: float | None) -> Iterator[Finding]:
    """The finding of a metric with limits: of the first limit that is broken, or that none is. Nothing where no limit applies."""
    limits = [one for one in all_signs().values() if one.metric == metric and one.measure]
    if metric == "objective/kl" and target is not None:  # growth up to the target is what it is for
        limits = [one for one in limits if one.measure == "target"]
    found = [(one, x) for one in limits if (x := _measured_value(values, one.measure, target)) is not None]
    for one, number in found:
        if number < one.limit if one.side == "below" else number > one.limit:
            yield _sick(one.sign, f"{metric} is {number:.3g} {MEASURES[one.measure]} (healthy: {one.bound})")
            return
    if found:
        sentence = " and ".join(dict.fromkeys(f"{number:.3g} {MEASURES[one.measure]}" for one, number in found))
        bounds = ", ".join(one.bound for one, _ in found)
        yield Finding(metric, "healthy", f"{metric} is {sentence} (healthy: {bounds}).")


def _measured_value(values: Sequence[float], measure: str, target: float | None) -> float | None:
    """The number that a limit is about; None where there is none, such as a ratio to 0."""
    size = len(values) // 4
    first, third, last = (sum(part) / size for part in (values[:size], values[-2 * size : -size], values[-size:]))
    if measure == "level":
        return last
    if measure == "growth" and last < GROWN:
        return None
    base = {"change": first, "growth": third, "target": target}[measure]
    return last / base if base and base > 0 else None
