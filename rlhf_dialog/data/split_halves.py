"""The training dialogues divided into two halves that share nothing alike: one for the reward's model, one for its judges.

Two dialogues are tied when they share two long utterances (those of `long_utterances`), and these are at least half of those of
the shorter one. Whole clusters of tied dialogues go to one half; what still repeats the reward's half is in neither.
"""

import hashlib
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_dialog.data.overlap import find_repeats, long_utterances
from rlhf_dialog.data.prompts import DialogueNumbers
from rlhf_dialog.data.sources import DialogueRecord

logger = logging.getLogger(__name__)

REWARD, JUDGE, DROPPED = "reward", "judge", "dropped"
MAX_HOLDERS = 10  # an utterance of more dialogues ties nobody, such as "Can I help you ?"
MIN_SHARED = 2


@dataclass(frozen=True)
class Halves:
    """What `divide` returns."""

    parts: list[str]  # of each record: "reward", "judge" or "dropped"
    assignment: str  # a hash of the data, the rule, and what it gave
    num_dialogues: int
    largest_cluster: int


def divide(records: Sequence[DialogueRecord]) -> Halves:
    """Give every training dialogue to a half, and log how. Prompts of one dialogue stay together."""
    numbering = DialogueNumbers()
    for number, record in enumerate(records):
        numbering.add(number, record)
    first = numbering.first(len(records)).tolist()
    said: dict[int, set[str]] = defaultdict(set)
    for row, dialogue in enumerate(first):
        said[dialogue] |= long_utterances(records[row])
    numbers, utterances = list(said), list(said.values())
    clusters = _clusters(utterances)
    halves: dict[str, list[int]] = {REWARD: [], JUDGE: []}
    for cluster in sorted(clusters, key=len, reverse=True):
        halves[min(halves, key=lambda name: len(halves[name]))] += cluster
    judge, reward = ([utterances[place] for place in halves[name]] for name in (JUDGE, REWARD))
    dropped = {halves[JUDGE][place] for place in find_repeats(judge, reward)}
    part_of = {numbers[place]: name for name, places in halves.items() for place in places}
    part_of |= {numbers[place]: DROPPED for place in dropped}
    parts = [part_of[first[row]] for row in range(len(records))]
    largest = max(map(len, clusters))
    found = Halves(parts, _assignment(records, parts), len(numbers), largest)
    text = (
        "halves of %d training dialogues: the largest cluster of dialogues that repeat each other has %d (%.2f %%), the halves "
        "differ by %d, and %d that still repeat one of the reward's half were left out of the judge's"
    )
    difference = abs(len(halves[REWARD]) - len(halves[JUDGE]))
    logger.info(text, len(numbers), largest, 100 * largest / len(numbers), difference, len(dropped))
    return found


def _clusters(utterances: Sequence[set[str]]) -> list[list[int]]:
    """The places of dialogues that are tied to each other, directly or by others; in the order of their first."""
    holders: dict[str, list[int]] = defaultdict(list)
    for place, texts in enumerate(utterances):
        for utterance in texts:
            holders[utterance].append(place)
    cluster_of = {place: [place] for place in range(len(utterances))}
    for place, texts in enumerate(utterances):
        rare = (holders[utterance] for utterance in texts if len(holders[utterance]) <= MAX_HOLDERS)
        shared = Counter(other for places in rare for other in places if other < place)
        for other, count in shared.items():
            is_tied = count >= MIN_SHARED and 2 * count >= min(len(texts), len(utterances[other]))
            small, large = sorted((cluster_of[place], cluster_of[other]), key=len)
            if is_tied and small is not large:
                large += small
                cluster_of |= dict.fromkeys(small, large)
    return list({id(cluster): sorted(cluster) for cluster in cluster_of.values()}.values())


def _assignment(records: Sequence[DialogueRecord], parts: list[str]) -> str:
    """The same for the same texts in the same order under the same rule only."""
    found = hashlib.sha256(f"{MAX_HOLDERS} {MIN_SHARED}\n".encode())
    for record, part in zip(records, parts, strict=True):
        found.update(json.dumps([record.turns, record.references, part]).encode())
    return found.hexdigest()
