"""What the metrics of a run say, in words: for each sign its number, whether it is healthy, and what to do.

docs/READING_A_RUN.md shows the same table. `values` are the finite numbers of one metric, in the order of the iterations; a
quarter of them is what a sign compares.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_dialog.evaluation.gain import Gain, recent_gain
from rlhf_dialog.evaluation.intervals import Interval, mean_statistic, unpaired_difference

MIN_ITERATIONS, MIN_VALIDATIONS = 12, 4
GROWN = 0.1  # nats per token: a KL below it may grow
Row = dict[str, Any]
MEASURES = {  # how a number is taken from the values of a metric -> how it is said
    "level": "in the last quarter",
    "change": "times the first quarter",
    "growth": "times the third quarter",
    "target": "times `kl_target`",
}


@dataclass(frozen=True)
class Sign:
    """One row of the table: a sign of a metric, when it is healthy, and when it is sick; ADVICE says what to do then."""

    name: str
    metric: str
    healthy: str
    sick: str


@dataclass(frozen=True)
class Limit:
    """A sign that is sick on one side of a limit, below or above; `measure` is one of MEASURES."""

    name: str
    metric: str
    measure: str
    side: str
    value: float

    @property
    def bound(self) -> str:
        return f"at {'least' if self.side == 'below' else 'most'} {self.value:g}"

    @property
    def healthy(self) -> str:
        return f"{self.bound} {MEASURES[self.measure]}"

    @property
    def sick(self) -> str:
        return f"{self.side} {self.value:g}"

    def is_broken_by(self, number: float) -> bool:
        return number < self.value if self.side == "below" else number > self.value


RISING, FALLING, UNCLEAR = "the interval of its change lies above 0", "it lies below 0", "it contains 0"
JUDGED = "eval/judge_"  # begins the metrics of a judge that the reward does not contain
LOSS = Sign("the policy loses", "`objective/gain`", RISING.replace("its change", "the gain"), FALLING)
NO_GAIN = Sign("no gain yet", "`objective/gain`", LOSS.healthy, UNCLEAR)
FALLS = Sign("reward falls", "`objective/score`", RISING, FALLING)
FLAT = Sign("reward does not rise", "`objective/score`", RISING, UNCLEAR)
AGAINST = Sign("validation falls", "`eval/score`", RISING, FALLING)
NOT_WITH = Sign("validation does not rise", "`eval/score`", RISING, UNCLEAR)
JUDGE = Sign("held-out judge falls", f"`{JUDGED}<name>`", "the interval of its change does not lie below 0", FALLING)
STILL_GROWS = f"KL of {GROWN:g} or more still grows"
LIMITS = (
    Limit("KL above its target", "objective/kl", "target", "above", 1.5),
    Limit("KL below its target", "objective/kl", "target", "below", 0.5),
    Limit(STILL_GROWS, "objective/kl", "growth", "above", 1.2),
    Limit("KL stays at 0", "objective/kl", "level", "below", 0.001),
    Limit("entropy falls", "objective/entropy", "change", "below", 0.5),
    Limit("entropy rises", "objective/entropy", "change", "above", 1.5),
    Limit("replies become shorter", "response/length", "change", "below", 0.5),
    Limit("replies become longer", "response/length", "change", "above", 1.5),
    Limit("replies become alike", "response/distinct_2", "change", "below", 0.7),
    Limit("replies are cut off", "response/truncated", "level", "above", 0.2),
    Limit("steps are clipped", "ppo/clip_fraction", "level", "above", 0.3),
    Limit("the critic explains little", "ppo/explained_variance", "level", "below", 0.1),
)
ADVICE = {  # what to do when a sign is sick
    "the policy loses": "lower `lr`, and look at clip fraction and KL below",
    "no gain yet": "let it run on; if the KL stays near 0, raise `lr` or lower `kl_coef`; if it does not, see whether the reward "
    "differs between replies to one prompt",
    "reward falls": "lower `lr`, and look at clip fraction and KL below",
    "reward does not rise": "run more iterations or larger rollouts; if that changes nothing, raise `lr`, and see whether the "
    "reward differs between replies to one prompt",
    "validation falls": "take the agent of the best iteration, train shorter or on more prompts, and read its replies: the "
    "reward may be gamed",
    "validation does not rise": "raise `eval_episodes` for a narrower interval, and train on more prompts",
    "held-out judge falls": "take the agent of an earlier iteration, raise `kl_coef`, and look for what the reward pays by "
    "mistake with `rlhf-dialog audit`",
    "KL above its target": "raise `kl_coef` or `kl_rate`, or lower `lr`",
    "KL below its target": "let it run on; if the reward does not rise either, raise `lr` or lower `kl_coef`",
    STILL_GROWS: "give it a target (`kl_rate` above 0), raise `kl_coef`, or take an earlier checkpoint",
    "KL stays at 0": "the policy hardly moves: raise `lr` or lower `kl_coef`",
    "entropy falls": "the policy becomes certain too early: lower `lr`, raise `kl_coef` or `entropy_coef`",
    "entropy rises": "the policy turns into noise: lower `lr` or `entropy_coef`, raise `kl_coef`",
    "replies become shorter": "the reward may pay for short replies: add `LengthMatch` or `LengthHold` to it",
    "replies become longer": "the reward may pay for long replies: add `LengthMatch` or `LengthHold` to it",
    "replies become alike": "read the replies for a phrase that always pays; raise `kl_coef`, or pay another part of the reward",
    "replies are cut off": "raise `max_new_tokens`, or set `truncation_penalty`",
    "steps are clipped": "the steps are too large: lower `lr` or `ppo_epoch`",
    "the critic explains little": "raise `critic_lr`, or take an estimator without a critic (`advantage_estimator: rloo`)",
}
LABELS = {
    "objective/kl": "KL",
    "objective/entropy": "Entropy",
    "response/length": "Length of replies",
    "response/distinct_2": "Distinct-2",
    "response/truncated": "Share of truncated replies",
    "ppo/clip_fraction": "Clip fraction",
    "ppo/explained_variance": "Explained variance",
}


@dataclass(frozen=True)
class Finding:
    """What one sign says of a run: `state` is healthy, sick or open, and `sentence` says why and what to do."""

    sign: str
    state: str
    sentence: str


def table() -> list[list[str]]:
    """The rows of all rules: sign, metric, healthy, sick, what to do."""
    signs: list[Sign | Limit] = [LOSS, NO_GAIN, FALLS, FLAT, AGAINST, NOT_WITH, JUDGE, *LIMITS]
    return [[one.name, one.metric.strip("`"), one.healthy, one.sick, ADVICE[one.name]] for one in signs]


def verdict(rows: Sequence[Row], config: dict[str, Any]) -> tuple[str, list[Finding]]:
    """A headline, and a finding for each sign that the rows of a metrics.jsonl have; `config` is the run's config.yaml."""
    findings = list(_findings(rows, config))
    reward = findings[0]
    later_findings = ", ".join(one.sign for one in findings[1:] if one.state == "sick")
    if reward.state == "open":
        head = "It is too early to say whether the curve is right"
    elif reward.state == "sick":
        head = f"The curve is not right: {reward.sign}"
    elif later_findings:
        return f"The reward rises, but look at this: {later_findings}.", findings
    else:
        return "The curve is right: the reward rises, and all other signs are healthy; nothing to do.", findings
    return f"{head}; look also at this: {later_findings}." if later_findings else f"{head}.", findings


def _findings(rows: Sequence[Row], config: dict[str, Any]) -> Iterator[Finding]:
    score = next((name for name in ("objective/score", "reward") if finite_values(rows, name)), "objective/score")
    group_size = config.get("num_responses_per_prompt")
    group_size = group_size if isinstance(group_size, int) and group_size > 0 else 1  # a found folder's may be anything
    gain = recent_gain(rows, group_size) if "objective/gain" in rows[-1] else None
    yield _gain(gain, len(rows)) if gain else _reward(finite_values(rows, score))
    names = (f"eval/{config.get('eval_metric', 'score')}", "eval/score", "eval/reward")
    validation = next((name for name in names if finite_values(rows, name)), None)
    if validation:
        yield _validation(rows, validation, finite_values(rows, score))
    for judge in dict.fromkeys(name for row in rows for name in row if name.startswith(JUDGED)):
        if len(finite_values(rows, judge)) >= MIN_VALIDATIONS:
            yield _judge(rows, judge, finite_values(rows, score))
    target = kl_target(config)
    for metric in dict.fromkeys(one.metric for one in LIMITS):
        values = finite_values(rows, metric)
        if len(values) >= MIN_ITERATIONS:
            yield from _check_limits(metric, values, target)


def finite_values(rows: Sequence[Row], name: str) -> list[float]:
    """The finite numbers of a metric, in the order of the rows."""
    values = (row.get(name) for row in rows)
    return [float(value) for value in values if value is not None and math.isfinite(value)]


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


def _direction(change: Interval) -> int:
    """1: the interval lies above 0; -1: below; 0: it contains 0."""
    return int(change["low"] > 0) - int(change["high"] < 0)


def _format_change(change: Interval) -> str:
    return f"{change['mean']:+.3g} [{change['low']:+.3g}, {change['high']:+.3g}]"


def _reward(values: Sequence[float]) -> Finding:
    if len(values) < MIN_ITERATIONS:
        sentence = (
            f"Iterations with a reward: {len(values)} of the {MIN_ITERATIONS} that it takes; make the page again later."
        )
        return Finding("reward", "open", sentence)
    first, last, change = score_change(values)
    sentence = f"{_format_change(change)}, from {first:.3g} to {last:.3g}"
    if _direction(change) > 0:
        return Finding("reward", "healthy", f"The reward rises: {sentence}.")
    if _direction(change) < 0:
        return Finding(FALLS.name, "sick", f"The reward falls: {sentence}; {ADVICE[FALLS.name]}.")
    return Finding(FLAT.name, "sick", f"The reward does not rise: {sentence}; {ADVICE[FLAT.name]}.")


def _gain(gain: Gain, num_iterations: int) -> Finding:
    """What the newest iterations have gained over the reference or, where that is unknown, over the first iteration."""
    sentence = f"{gain} over {gain.over}, in the newest {gain.num_replies:,} replies"
    loss, no_gain = (LOSS, NO_GAIN) if gain.over == "the reference" else (FALLS, FLAT)
    if gain.low > 0:
        return Finding("reward", "healthy", f"The reward is higher: {sentence}.")
    if gain.high < 0:
        return Finding(loss.name, "sick", f"The reward is lower: {sentence}; {ADVICE[loss.name]}.")
    more = gain.missing_replies
    needed = f"; about {more:,} more replies would show a gain of this size" if more else ""
    if num_iterations < MIN_ITERATIONS:
        return Finding("reward", "open", f"No gain can be seen yet: {sentence}{needed}.")
    return Finding(no_gain.name, "sick", f"No gain can be seen yet: {sentence}{needed}; {ADVICE[no_gain.name]}.")


def _validation(rows: Sequence[Row], name: str, rewards: Sequence[float]) -> Finding:
    values = finite_values(rows, name)
    if len(values) < MIN_VALIDATIONS:
        sentence = (
            f"Validations: {len(values)} of the {MIN_VALIDATIONS} that it takes to compare them; lower `eval_interval`."
        )
        return Finding("validation", "open", sentence)
    _, _, change = score_change(values, 4 if len(values) >= MIN_ITERATIONS else 2)
    best = max((row for row in rows if finite_values([row], name)), key=lambda row: float(row[name]))
    sentence = f"{_format_change(change)}, best {best[name]:.3g} after iteration {best['iteration']}"
    rises = _rises(rewards)
    if _direction(change) > 0:
        word = " with the reward" if rises else ""
        return Finding("validation", "healthy", f"{name} rises{word}: {sentence}.")
    if _direction(change) < 0:
        word = " while the reward rises" if rises else ""
        return Finding(AGAINST.name, "sick", f"{name} falls{word}: {sentence}; {ADVICE[AGAINST.name]}.")
    return Finding(NOT_WITH.name, "sick", f"{name} does not rise: {sentence}; {ADVICE[NOT_WITH.name]}.")


def _rises(rewards: Sequence[float]) -> bool:
    return len(rewards) >= MIN_ITERATIONS and _direction(score_change(rewards)[2]) > 0


def _judge(rows: Sequence[Row], name: str, rewards: Sequence[float]) -> Finding:
    values = finite_values(rows, name)
    _, _, change = score_change(values, 4 if len(values) >= MIN_ITERATIONS else 2)
    label = f"The held-out judge {name.removeprefix(JUDGED)}"
    if _direction(change) < 0:
        word = " while the reward rises" if _rises(rewards) else ""
        return Finding(JUDGE.name, "sick", f"{label} falls{word}: {_format_change(change)}; {ADVICE[JUDGE.name]}.")
    word = "rises" if _direction(change) > 0 else "does not fall"
    return Finding("held-out judge", "healthy", f"{label} {word}: {_format_change(change)}.")


def _check_limits(metric: str, values: Sequence[float], target: float | None) -> Iterator[Finding]:
    """The finding of a metric with limits: of the first limit that is broken, or that none is. Nothing where no limit applies."""
    measured = [(limit, _measured_values(values, limit.measure, target)) for limit in LIMITS if limit.metric == metric]
    if metric == "objective/kl" and target is not None:  # growth up to the target is what it is for
        measured = [(limit, number) for limit, number in measured if limit.measure == "target"]
    numbers = [(limit, number) for limit, number in measured if number is not None]
    if not numbers:
        return
    label = LABELS[metric]
    for limit, number in numbers:
        if limit.is_broken_by(number):
            sentence = f"{number:.3g} {MEASURES[limit.measure]} (sick: {limit.sick})"
            yield Finding(limit.name, "sick", f"{label} is {sentence}; {ADVICE[limit.name]}.")
            return
    sentence = " and ".join(dict.fromkeys(f"{number:.3g} {MEASURES[limit.measure]}" for limit, number in numbers))
    limits = ", ".join(limit.bound for limit, _ in numbers)
    yield Finding(label, "healthy", f"{label} is {sentence} (healthy: {limits}).")


def _measured_values(values: Sequence[float], measure: str, target: float | None) -> float | None:
    """The number that a limit is about; None where there is none, such as a ratio to 0."""
    size = len(values) // 4
    first, third, last = (sum(part) / size for part in (values[:size], values[-2 * size : -size], values[-size:]))
    if measure == "level":
        return last
    if measure == "growth" and last < GROWN:
        return None
    base = {"change": first, "growth": third, "target": target}[measure]
    return last / base if base and base > 0 else None
