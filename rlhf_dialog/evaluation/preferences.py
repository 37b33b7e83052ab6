"""Is a reward model worth anything? Its accuracy on held-out pairs beside baselines that need no model, and what it measures.

N pairs. A score of a pair is that of the chosen reply less that of the rejected one; 0 counts as half a hit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.preferences import PreferencePair
from rlhf_dialog.evaluation.intervals import Array, Interval, difference, interval, mean_statistic

NUM_BINS = 5
LONGER, SHORTER, COPIES = "longer_wins", "shorter_wins", "more_of_the_last_turn_wins"
FEW_PAIRS = 100
Z = 1.96  # of a 95 % interval

Score = Callable[[list[Dialogue]], list[float]]


def measure_pairs(pairs: Sequence[PreferencePair], score: Score, seed: int = 0) -> dict[str, Any]:
    """The report on held-out pairs, as JSON; `score` gives the model's output for each dialogue."""
    chosen, rejected = (np.asarray(score([getattr(p, side) for p in pairs])) for side in ("chosen", "rejected"))
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(pair.prompt for pair in pairs))}
    units = np.asarray([numbers[pair.prompt] for pair in pairs], dtype=np.int64)
    words = np.asarray([[len(reply.response.split()) for reply in (p.chosen, p.rejected)] for p in pairs], dtype=float)
    copied = np.asarray([[_copied(reply.response, p.last_turn) for reply in (p.chosen, p.rejected)] for p in pairs])
    longer = words[:, 0] - words[:, 1]
    guesses = {LONGER: longer, SHORTER: -longer, COPIES: copied[:, 0] - copied[:, 1]}
    hits = {name: mean_statistic(_hits(guess), units) for name, guess in guesses.items()}
    accuracy = mean_statistic(_hits(chosen - rejected), units)
    best = max(hits, key=lambda name: hits[name].point)
    result = {
        "num_pairs": len(pairs),
        "num_prompts": len(numbers),
        "accuracy": share(_hits(chosen - rejected), units),
        "baselines": {name: share(_hits(guess), units) for name, guess in guesses.items()},
        "above_best_baseline": {"baseline": best} | difference(hits[best], accuracy),
        "length": _length_report(chosen, rejected, words),
        "last_turn_repeated": {"preferred_to_chosen": _repetition(pairs, score, chosen)},
        "calibration": calibration(chosen - rejected, seed),
    }
    return result | {"notes": notes(result)}


def share(hits: Array, units: Any = None) -> Interval:
    """The mean of hits with its interval; where all resamples are 0 or all are 1, the other end is Wilson's (1927)."""
    statistic = mean_statistic(hits, units)
    bounds = interval(statistic)
    if not bounds["low"] == bounds["high"] == bounds["mean"] or bounds["mean"] not in (0.0, 1.0):
        return bounds
    width = Z**2 / (len(statistic.unit_sums()) + Z**2)
    return bounds | ({"low": 1 - width} if bounds["mean"] else {"high": width})


def calibration(margins: Array, seed: int = 0) -> dict[str, Any]:
    """How often the first of two replies was preferred, by the probability that the model gave it: sigmoid(margin).

    Which reply is the first is drawn for each pair. `error`: the expected calibration error over the bins.
    """
    first = np.random.default_rng(seed).random(len(margins)) < 0.5
    predicted = np.exp(-np.logaddexp(0.0, -np.where(first, margins, -margins)))
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


def rank_correlation(first: Array, second: Array) -> float | None:
    """Spearman's rank correlation; equal values share the mean of their ranks. None where one of them does not vary."""
    ranks = []
    for values in (first, second):
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[place])
    return None if min(rank.std() for rank in ranks) == 0 else float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def notes(result: dict[str, Any]) -> list[str]:
    """What a reader has to know, the worst first: in plain sentences."""
    accuracy, best, baselines = result["accuracy"], result["above_best_baseline"], result["baselines"]
    repeated, lines = result["last_turn_repeated"]["preferred_to_chosen"], []
    if measures_length(result):
        longer, prefers = baselines[LONGER]["mean"], result["length"]["prefers_longer"]
        kind, wins, prefers = ("longer", longer, prefers) if prefers > 0.5 else ("shorter", 1 - longer, 1 - prefers)
        lines.append(
            f"The {kind} reply wins {wins:.0%} of the pairs, and this model prefers the {kind} one in {prefers:.0%}: it "
            "mostly measures length. Use pairs of equal length, or RewardModel's length_price."
        )
    if best["low"] <= 0:
        lines.append(
            f"This model is not shown to be better than the rule '{best['baseline'].replace('_', ' ')}', which is right in "
            f"{baselines[best['baseline']]['mean']:.0%} of the pairs without any model."
        )
    if accuracy["low"] <= 0.5 <= accuracy["high"]:
        lines.append("Its accuracy may be that of chance: as a reward it is worth nothing.")
    if accuracy["high"] < 0.5 or baselines[COPIES]["low"] > 0.6:
        lines.append(
            "It prefers the rejected reply, or the chosen one repeats the last turn: are the columns exchanged?"
        )
    if (repeated or 0) > 0.5:
        lines.append("It scores a mere repetition of the last turn above the chosen reply in most pairs.")
    if repeated is None:
        lines.append("No pair has a prompt apart from its replies, so the model will read another form in a dialogue.")
    if result["num_pairs"] < FEW_PAIRS:
        lines.append(f"There are only {result['num_pairs']} held-out pairs, so the intervals are wide.")
    return lines


def measures_length(result: dict[str, Any]) -> bool:
    """Whether the choice of the model is nearly that of a rule of length, in data that such a rule explains well."""
    prefers, rule = result["length"]["prefers_longer"], result["baselines"][LONGER]["mean"]
    if prefers is None or (prefers - 0.5) * (rule - 0.5) <= 0:
        return False
    right = result["length"]["where_the_rule_is_wrong"]["mean"]
    return abs(prefers - 0.5) >= 0.25 and abs(rule - 0.5) >= 0.1 and (right is None or right < 0.5)


def _length_report(chosen: Array, rejected: Array, words: Array) -> dict[str, Any]:
    """What the score has to do with `words`, (N, 2): those of the chosen and of the rejected replies."""
    hits, longer = _hits(chosen - rejected), words[:, 0] - words[:, 1]
    prefers = _hits((chosen - rejected) * np.sign(longer))[longer != 0]
    rule = 1.0 if np.mean(_hits(longer)) >= 0.5 else -1.0
    wrong = hits[longer * rule < 0]
    found: Interval | dict[str, None] = share(wrong) if len(wrong) else dict.fromkeys(("mean", "low", "high"))
    return {
        "rank_correlation": rank_correlation(np.concatenate([chosen, rejected]), words.T.ravel()),
        "prefers_longer": float(prefers.mean()) if len(prefers) else None,
        "where_the_rule_is_wrong": {"num_pairs": len(wrong)} | found,
    }


def _repetition(pairs: Sequence[PreferencePair], score: Score, chosen: Array) -> float | None:
    """How often the last turn of the prompt as a reply scores higher than the chosen reply; None where no pair has a prompt."""
    asked = [i for i, pair in enumerate(pairs) if pair.last_turn]
    if not asked:
        return None
    copies = score([Dialogue(pairs[i].chosen.prompt_turns, pairs[i].last_turn) for i in asked])
    return float(np.mean(_hits(np.asarray(copies) - chosen[asked])))


def _copied(reply: str, turn: str) -> float:
    words, known = reply.lower().split(), set(turn.lower().split())
    return sum(word in known for word in words) / len(words) if words else 0.0


def _hits(margins: Array) -> Array:
    return (np.sign(margins) + 1) / 2


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    length, normal, calibrated = report["length"], report["normalisation"], report["calibration"]
    rows = {"**this model**": report["accuracy"]}
    rows |= {name.replace("_", " "): numbers for name, numbers in report["baselines"].items()}
    rows |= {"pairs in which the rule of length is wrong": length["where_the_rule_is_wrong"]}
    repeated = _number(report["last_turn_repeated"]["preferred_to_chosen"], ".0%")
    return "\n".join(
        [
            *("# Reward model", "", *(f"- **{note}**" for note in report["notes"]), *([""] if report["notes"] else [])),
            *(f"{report['num_pairs']} held-out pairs of {report['num_prompts']} prompts that were not trained on.", ""),
            *("| right in | of pairs | 95 % interval of this one run |", "|---|---|---|"),
            *(_row(name, numbers) for name, numbers in rows.items()),
            "",
            f"Rank correlation of score and number of words: {_number(length['rank_correlation'])}. Of two replies with "
            f"other numbers of words it prefers the longer one in {_number(length['prefers_longer'], '.0%')}.",
            *(f"It scores a repetition of the last turn above the chosen reply in {repeated}.", ""),
            f"Stored for `normalize`: mean {normal['mean']:.4f}, deviation {normal['std']:.4f}, of {normal['of']}.",
            *("", "| predicted | pairs | mean prediction | won |", "|---|---|---|---|"),
            *(
                f"| {one['from']:.1f} to {one['to']:.1f} | {one['pairs']} | {one['predicted']:.3f} | {one['won']:.3f} |"
                for one in calibrated["bins"]
            ),
            *("", f"Calibration error {calibrated['error']:.3f}.", ""),
        ]
    )


def _row(name: str, numbers: dict[str, Any]) -> str:
    count = f" ({numbers['num_pairs']})" if "num_pairs" in numbers else ""
    shares = [_number(numbers[key], ".1%") for key in ("mean", "low", "high")]
    return f"| {name}{count} | {shares[0]} | {shares[1]} to {shares[2]} |"


def _number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)
