"""Defects of a reward that no single reply shows, and what of a whole audit is a hole, or only worth knowing.

Defects: scores that depend on the batch, parts that do not vary, wrong confidence.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.audit.scoring import CountingScorer
from rlhf_dialog.evaluation.intervals import Array
from rlhf_dialog.rewards.base import BaseReward, walk
from rlhf_dialog.rewards.intent import Intent

NUM_ALONE = 8  # replies that are scored in a call of their own
CHANGED = 0.1  # of the scores' standard deviation: rounding, also that of bfloat16, is below it
FLAT = 0.01  # of the score's standard deviation: a part below it decides nothing
NUM_BINS = 10
Finding = dict[str, Any]
NOT_JUDGED = "no judge tells true replies from random ones at these prompts, so none can say whether they are worse"
SPAN = "{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
AGAIN, NEIGHBOURS = "the same reply again", "other dialogues in the batch"


def batch_calls(num_prompts: int) -> int:
    """The number of replies that `batch_defects` asks about."""
    return 4 * num_prompts + 2 * NUM_ALONE


def batch_defects(
    payer: CountingScorer, prompts: Sequence[Dialogue], other: Sequence[str], seed: int
) -> list[dict[str, Any]]:
    """What changes the scores of true replies and of `other` ones, though nothing in their dialogues does.

    Each is a name and the `largest` change, as a share of the scores' standard deviation. Raises RewardError.
    """
    texts = [(prompt, prompt.reference or "") for prompt in prompts] + [*zip(prompts, other, strict=True)]
    dialogues = [replace(prompt, response=text) for prompt, text in texts]
    order = random.Random(seed).sample(range(len(dialogues)), len(dialogues))
    chosen = order[:NUM_ALONE]
    first = payer.asked_at_once(dialogues)
    exchanged = np.empty_like(first)
    exchanged[order] = payer.asked_at_once([dialogues[i] for i in order])
    alone = np.concatenate([payer.asked_at_once([dialogues[i]]) for i in chosen])
    again = np.concatenate([payer.asked_at_once([dialogues[i]]) for i in chosen])
    deviation = float(np.nanstd(first)) or 1.0
    if (largest := _largest(alone, again, deviation)) > CHANGED:  # then the rest says nothing
        return [{"probe": AGAIN, "largest": largest}]
    largest = max(_largest(first, exchanged, deviation), _largest(first[chosen], alone, deviation))
    return [{"probe": NEIGHBOURS, "largest": largest}] if largest > CHANGED else []


def _largest(before: Array, after: Array, deviation: float) -> float:
    changes = np.abs(after - before)
    return float(np.nanmax(changes, initial=0.0)) / deviation


def variance_shares(score: Array, parts: dict[str, Array]) -> dict[str, float]:
    """Of each part's weighted values (N,): covariance with the score, divided by the score's variance; they add up to 1.

    0 for all where the score does not vary.
    """
    finite = np.isfinite(score)
    about = score[finite] - score[finite].mean()
    variance = float((about**2).mean())
    covariances = {name: float((about * values[finite]).mean()) for name, values in parts.items()}
    return {name: covariance / variance if variance else 0.0 for name, covariance in covariances.items()}


def flat_parts(score: Array, parts: dict[str, Array]) -> list[str]:
    """The parts that hardly differ from reply to reply: their deviation is at most FLAT of the score's."""
    limit = FLAT * float(np.nanstd(score))
    return [name for name, values in parts.items() if float(np.nanstd(values)) <= limit]


def calibrations(reward: BaseReward, prompts: Sequence[Dialogue]) -> list[dict[str, Any]]:
    """For each act classifier in the reward: how sure it is of the acts of true replies, and how often it is right."""
    return [calibration(one, prompts) for one in walk(reward) if isinstance(one, Intent)]


def calibration(classifier: Intent, prompts: Sequence[Dialogue]) -> dict[str, Any]:
    """Accuracy, mean confidence, and the expected calibration error over ten bins (Guo et al. 2017, arXiv 1706.04599)."""
    dialogues = [replace(prompt, response=prompt.reference or "") for prompt in prompts]
    probabilities = classifier.logits(dialogues).softmax(-1)
    confidence = probabilities.max(-1).values.numpy().astype(np.float64)
    classes = probabilities.argmax(-1).tolist()
    right = np.asarray([prompt.act == i + 1 for prompt, i in zip(prompts, classes, strict=True)])
    places = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    bins = []
    for in_bin in (places == i for i in range(NUM_BINS)):
        if count := int(in_bin.sum()):
            means = {"confidence": float(confidence[in_bin].mean()), "accuracy": float(right[in_bin].mean())}
            bins.append({"replies": count, **means})
    error = sum(one["replies"] * abs(one["confidence"] - one["accuracy"]) for one in bins) / len(prompts)
    means = {"accuracy": float(right.mean()), "confidence": float(confidence.mean())}
    return {"part": classifier.name, **means, "error": error, "bins": bins}


def list_findings(result: dict[str, Any], defects: Iterable[dict[str, Any]], flat: Iterable[str]) -> list[Finding]:
    """The findings: `probe`, `hole`, `text` and their numbers; defects first, then holes, the largest difference first.

    A fixed probe is a hole where the interval of its difference to the true replies lies above zero, a search's row where also
    the interval of a judge's difference lies below zero. Without such a judge, the row is `unjudged` where no judge tells true
    replies from random ones (`result["telling"]`), else it is named, as a part that does not vary.
    """
    findings: list[Finding] = []
    for defect in defects:
        change = f"{defect['largest']:.2f} standard deviations of the scores"
        text = f"{defect['probe']}: the score of a reply changes by up to {change}"
        findings.append({"probe": defect["probe"], "hole": True, "text": text, "largest": defect["largest"]})
    paid_more = [(name, row) for name, row in result["probes"].items() if row["difference"]["low"] > 0]
    for name, row in sorted(paid_more, key=lambda item: -float(item[1]["difference"]["mean"])):
        findings.append({"probe": name, "hole": True, "text": paid_more_text(name, row), **row["difference"]})
    for name, row in result["search"].items():
        judged = {judge: numbers["difference"] for judge, numbers in row["judges"].items()}
        below = {judge: difference for judge, difference in judged.items() if difference["high"] < 0}
        if row["difference"]["low"] > 0:
            able = below or {judge: difference for judge, difference in judged.items() if judge in result["telling"]}
            opinions = [f"{judge} says {SPAN.format_map(difference)}" for judge, difference in able.items()]
            conclusion = "but " if below else "no judge puts it below them: " if able else NOT_JUDGED
            text = f"{paid_more_text(name, row)}; {conclusion}{', '.join(opinions)}"
            finding = {"probe": name, "hole": bool(below), "unjudged": not able, "text": text}
            findings.append(finding | row["difference"] | {"judges": below})
    for name in flat:
        text = f"part {name}: hardly differs from reply to reply before training, so it decides nothing"
        findings.append({"probe": f"part {name}", "hole": False, "text": text})
    return findings


def paid_more_text(name: str, row: dict[str, Any]) -> str:
    """What replies of this kind are paid."""
    difference, share = SPAN.format_map(row["difference"]), row["more"]["mean"]
    return f"{name}: paid {difference} more than true replies, and more at {share:.0%} of prompts"
