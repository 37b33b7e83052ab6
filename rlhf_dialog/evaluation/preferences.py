"""Is a reward model worth anything? Its accuracy on held-out pairs beside baselines that need no model, and what it measures.

N pairs. A score of a pair is that of the chosen reply less that of the rejected one; 0 counts as half a hit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.preferences import PreferencePair
from rlhf_dialog.evaluation.intervals import Array, Interval, Statistic, difference, interval, mean_statistic, ratio

NUM_BINS = 5
LONGER, SHORTER, COPIES, RANDOM = "longer_wins", "shorter_wins", "more_of_the_last_turn_wins", "random"
MORE_CHARACTERS, FEWER_CHARACTERS = "more_characters_win", "fewer_characters_win"
RULES = {"length": LONGER, "length_in_characters": MORE_CHARACTERS}  # part of the report -> the rule that it is about
UNITS: dict[str, Callable[[str], int]] = {"length": lambda text: len(text.split()), "length_in_characters": len}
SWAP_TOLERANCE = 1e-3
FEW_PAIRS = 100
Z = 1.96  # of a 95 % interval

Score = Callable[[list[Dialogue]], list[float]]


def measure_pairs(pairs: Sequence[PreferencePair], score: Score, seed: int = 0) -> dict[str, Any]:
    """The report on held-out pairs, as JSON; `score` gives the model's output for each dialogue."""
    chosen, rejected = (np.asarray(score([getattr(p, side) for p in pairs])) for side in ("chosen", "rejected"))
    prompt_numbers: dict[str, int] = {}
    units = np.asarray([prompt_numbers.setdefault(pair.prompt, len(prompt_numbers)) for pair in pairs], dtype=np.int64)
    longer, wider = (_longer(pairs, unit) for unit in UNITS)
    guesses = {LONGER: longer, SHORTER: -longer, MORE_CHARACTERS: wider, FEWER_CHARACTERS: -wider}
    copied = [[_shared_words(reply.response, p.last_turn) for reply in (p.chosen, p.rejected)] for p in pairs]
    guesses |= {
        COPIES: -np.diff(np.asarray(copied))[:, 0],
        RANDOM: np.random.default_rng(seed).choice([-1.0, 1.0], len(pairs)),
    }
    hits = {name: Statistic(_with_ones(_hits(guess)), ratio, units) for name, guess in guesses.items()}
    accuracy = Statistic(_with_ones(_hits(chosen - rejected)), ratio, units)
    best = max((name for name in hits if name != RANDOM), key=lambda name: hits[name].point)
    result = {
        "num_pairs": len(pairs),
        "num_prompts": int(units.max()) + 1,
        "accuracy": share(accuracy),
        "baselines": {name: share(statistic) for name, statistic in hits.items()},
        "above_best_baseline": {"baseline": best} | difference(hits[best], accuracy),
        **{unit: _length_report(pairs, chosen, rejected, unit) for unit in UNITS},
        "last_turn_repeated": {"preferred_to_chosen": _repetition(pairs, score, chosen)},
        "calibration": calibration(chosen - rejected, seed),
        "swap": swap_test(pairs, score, chosen - rejected),
        "scores": {"chosen": _moments(chosen), "rejected": _moments(rejected)},
    }
    return result | {"notes": notes(result)}


def share(statistic: Statistic) -> Interval:
    """`interval` of a share; where all resamples are 0 or all are 1, with the other end of Wilson's interval (1927)."""
    bounds = interval(statistic)
    if not bounds["low"] == bounds["high"] == bounds["mean"] or bounds["mean"] not in (0.0, 1.0):
        return bounds
    count = len(statistic.unit_sums())
    width = Z**2 / (count + Z**2)
    return bounds | ({"low": 1 - width} if bounds["mean"] else {"high": width})


def calibration(margins: Array, seed: int = 0) -> dict[str, Any]:
    """How often the first of two replies was preferred, by the probability that the model gave it: sigmoid(margin).

    Which reply is the first is drawn for each pair. `error`: the expected calibration error over the bins.
    """
    first = np.random.default_rng(seed).random(len(margins)) < 0.5
    predicted = _sigmoid(np.where(first, margins, -margins))
    edges = np.linspace(0, 1, NUM_BINS + 1)
    place = np.clip(np.digitize(predicted, edges) - 1, 0, NUM_BINS - 1)
    bins = []
    for i in range(NUM_BINS):
        members = place == i
        if count := int(members.sum()):
            means = {"predicted": float(predicted[members].mean()), "won": float(first[members].mean())}
            bins.append({"from": float(edges[i]), "to": float(edges[i + 1]), "pairs": count, **means})
    error = sum(one["pairs"] * abs(one["predicted"] - one["won"]) for one in bins) / len(margins)
    return {"error": error, "log_loss": float(np.mean(np.logaddexp(0.0, -margins))), "bins": bins}


def swap_test(pairs: Sequence[PreferencePair], score: Score, margins: Array) -> dict[str, Any]:
    """Score the exchanged pairs in another order: the probability must be one less the first one."""
    backwards = [*pairs][::-1]
    rejected, chosen = (np.asarray(score([getattr(p, side) for p in backwards])) for side in ("rejected", "chosen"))
    off = np.abs(_sigmoid(margins) + _sigmoid((rejected - chosen)[::-1]) - 1)
    worst = float(off.max())
    return {"largest_deviation": worst, "passed": bool(worst <= SWAP_TOLERANCE)}


def rank_correlation(first: Array, second: Array) -> float | None:
    """Spearman's rank correlation; equal values share the mean of their ranks. None where one of them does not vary."""
    ranks = [_ranks(first), _ranks(second)]
    if min(rank.std() for rank in ranks) == 0:
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def notes(result: dict[str, Any]) -> list[str]:
    """What a reader has to know, the worst first: in plain sentences."""
    accuracy, best = result["accuracy"], result["above_best_baseline"]
    lines = [_length_note(result, unit) for unit in UNITS if measures_length(result, unit)][:1]
    if best["low"] <= 0:
        lines.append(
            f"This model is not shown to be better than the rule '{best['baseline'].replace('_', ' ')}', which is right in "
            f"{result['baselines'][best['baseline']]['mean']:.0%} of the pairs without any model."
        )
    if accuracy["low"] <= 0.5 <= accuracy["high"]:
        lines.append("Its accuracy may be that of chance: as a reward it is worth nothing.")
    if accuracy["high"] < 0.5:
        lines.append(
            "It prefers the rejected reply more often than the chosen one: are the columns exchanged in some rows?"
        )
    if result["baselines"][COPIES]["low"] > 0.6:
        lines.append(
            "The chosen reply usually repeats more of the last turn than the rejected one: are 'chosen' and 'rejected' exchanged?"
        )
    if (result["last_turn_repeated"]["preferred_to_chosen"] or 0) > 0.5:
        lines.append("It scores a mere repetition of the last turn above the chosen reply in most pairs.")
    if result["last_turn_repeated"]["preferred_to_chosen"] is None:
        lines.append(
            "No pair has a prompt apart from its replies: in a dialogue, the model will read a form that it was not trained on."
        )
    if not result["swap"]["passed"]:
        lines.append(
            "The probability of an exchanged pair is not one less the first one: a score depends on its batch."
        )
    if result["num_pairs"] < FEW_PAIRS:
        lines.append(f"There are only {result['num_pairs']} held-out pairs, so the intervals are wide.")
    return lines


def _length_note(result: dict[str, Any], unit: str) -> str:
    longer, length = result["baselines"][RULES[unit]]["mean"], result[unit]
    kind, share = ("longer", longer) if length["prefers_longer"] > 0.5 else ("shorter", 1 - longer)
    prefers = max(length["prefers_longer"], 1 - length["prefers_longer"])
    counted, price = ("", ", or RewardModel's length_price") if unit == "length" else (", in characters,", "")
    return (
        f"The {kind} reply{counted} wins {share:.0%} of the pairs, and this model prefers the {kind} one in {prefers:.0%}: it "
        f"mostly measures length. Use pairs of equal length{price}."
    )


def measures_length(result: dict[str, Any], unit: str = "length") -> bool:
    """Whether the choice of the model is nearly that of a rule of length, in data that such a rule explains well."""
    length, rule = result[unit], result["baselines"][RULES[unit]]["mean"]
    prefers = length["prefers_longer"]
    if prefers is None or (prefers - 0.5) * (rule - 0.5) <= 0:
        return False
    right = length["where_the_rule_is_wrong"]["mean"]
    return abs(prefers - 0.5) >= 0.25 and abs(rule - 0.5) >= 0.1 and (right is None or right < 0.5)


def _length_report(pairs: Sequence[PreferencePair], chosen: Array, rejected: Array, unit: str) -> dict[str, Any]:
    """What the score has to do with the number of words, or of characters."""
    hits, longer = _hits(chosen - rejected), _longer(pairs, unit)
    sizes = np.asarray([UNITS[unit](getattr(pair, side).response) for side in ("chosen", "rejected") for pair in pairs])
    unequal = longer != 0
    prefers = _hits((chosen - rejected) * np.sign(longer))[unequal]
    rule = 1.0 if np.mean(_hits(longer)) >= 0.5 else -1.0
    return {
        "rank_correlation": rank_correlation(np.concatenate([chosen, rejected]), sizes.astype(float)),
        "prefers_longer": float(prefers.mean()) if len(prefers) else None,
        "equal_length": _part(hits, ~unequal),
        "where_the_rule_is_wrong": _part(hits, longer * rule < 0),
    }


def _part(hits: Array, members: Any) -> dict[str, Any]:
    """Number and accuracy of some of the pairs; null without any."""
    count = int(members.sum())
    found: Interval | dict[str, None] = dict.fromkeys(("mean", "low", "high"))
    return {"num_pairs": count} | (share(mean_statistic(hits[members])) if count else found)


def _repetition(pairs: Sequence[PreferencePair], score: Score, chosen: Array) -> float | None:
    """How often the last turn of the prompt as a reply scores higher than the chosen reply; None where no pair has a prompt."""
    asked = [i for i, pair in enumerate(pairs) if pair.last_turn]
    if not asked:
        return None
    copies = score([Dialogue(pairs[i].chosen.prompt_turns, pairs[i].last_turn) for i in asked])
    return float(np.mean(_hits(np.asarray(copies) - chosen[asked])))


def _longer(pairs: Sequence[PreferencePair], unit: str) -> Array:
    """Words, or characters, of the chosen reply less those of the rejected one."""
    size = UNITS[unit]
    return np.asarray([float(size(p.chosen.response) - size(p.rejected.response)) for p in pairs])


def _shared_words(reply: str, turn: str) -> float:
    words, known = reply.lower().split(), set(turn.lower().split())
    return sum(word in known for word in words) / len(words) if words else 0.0


def _hits(margins: Array) -> Array:
    return (np.sign(margins) + 1) / 2


def _with_ones(values: Array) -> Array:
    return np.stack([values, np.ones_like(values)], axis=-1)


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0.0, -x))


def _ranks(values: Array) -> Array:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def _moments(values: Array) -> dict[str, float]:
    return {"mean": float(values.mean()), "std": float(values.std())}


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    length, swap, normal = report["length"], report["swap"], report["normalisation"]
    rows = [("**this model**", report["accuracy"])]
    rows += [(name.replace("_", " "), share) for name, share in report["baselines"].items()]
    for unit, words in (("length", ""), ("length_in_characters", " in characters")):
        if unit in report:  # not in those of older versions
            rows += [(f"pairs of equal length{words}", report[unit]["equal_length"])]
            rows += [(f"pairs in which the rule of length{words} is wrong", report[unit]["where_the_rule_is_wrong"])]
    lines = ["# Reward model", "", *(f"- **{note}**" for note in report["notes"]), *([""] if report["notes"] else [])]
    lines += [f"{report['num_pairs']} held-out pairs of {report['num_prompts']} prompts that were not trained on.", ""]
    lines += ["| right in | of pairs | 95 % interval of this one run |", "|---|---|---|"]
    lines += [_row(name, found) for name, found in rows]
    ranks = [_number(report[unit]["rank_correlation"]) if unit in report else "-" for unit in UNITS]
    lines += ["", f"Rank correlation of score and number of words: {ranks[0]}, of characters: {ranks[1]}. "]
    longer = _number(length["prefers_longer"], ".0%")
    lines[-1] += f"Of two replies with other numbers of words it prefers the longer one in {longer}."
    repeated = report["last_turn_repeated"]["preferred_to_chosen"]
    lines += [f"It scores a repetition of the last turn above the chosen reply in {_number(repeated, '.0%')}.", ""]
    lines += [f"Swap test (chosen and rejected exchanged): {'passed' if swap['passed'] else 'FAILED'}, "]
    lines[-1] += f"largest deviation {swap['largest_deviation']:.1e}."
    stored = f"mean {normal['mean']:.4f}, deviation {normal['std']:.4f}, of {normal['of']}"
    lines += [f"Stored for `normalize`: {stored}.", ""]
    lines += ["| predicted | pairs | mean prediction | won |", "|---|---|---|---|"]
    lines += [
        f"| {one['from']:.1f} to {one['to']:.1f} | {one['pairs']} | {one['predicted']:.3f} | {one['won']:.3f} |"
        for one in report["calibration"]["bins"]
    ]
    return "\n".join([*lines, "", f"Calibration error {report['calibration']['error']:.3f}.", ""])


def _row(name: str, numbers: dict[str, Any]) -> str:
    count = f" ({numbers['num_pairs']})" if "num_pairs" in numbers else ""
    if numbers["mean"] is None:
        return f"| {name}{count} | - | - |"
    return f"| {name}{count} | {numbers['mean']:.1%} | {numbers['low']:.1%} to {numbers['high']:.1%} |"


def _number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)
