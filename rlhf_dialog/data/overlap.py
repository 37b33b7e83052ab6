"""Dialogues that nearly repeat others: at least half of their long utterances are in one of them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rlhf_dialog.data.sources.record import DialogueRecord

MIN_OVERLAP_TOKENS = 4


def find_repeats(dialogues: Sequence[set[str]], others: Sequence[set[str]]) -> set[int]:
    """Positions of the dialogues of which at least half of the long utterances are in one of the others."""
    holders = utterance_holders(others)
    return {index for index, utterances in enumerate(dialogues) if is_repeat(utterances, holders)}


def utterance_holders(others: Iterable[set[str]]) -> dict[str, list[int]]:
    """Which of the others hold each long utterance."""
    holders: dict[str, list[int]] = defaultdict(list)
    for index, utterances in enumerate(others):
        for utterance in utterances:
            holders[utterance].append(index)
    return holders


def is_repeat(utterances: set[str], holders: Mapping[str, Sequence[int]]) -> bool:
    """Whether one of the `utterance_holders` has at least half of a dialogue's long utterances."""
    shared = Counter(holder for utterance in utterances for holder in holders.get(utterance, ()))
    return bool(shared) and 2 * max(shared.values()) >= len(utterances)


def long_utterances(record: DialogueRecord) -> set[str]:
    """The distinct turns of 4 tokens or more (split at white space), lower-case letters and digits only."""
    long_turns = (turn for turn in record.turns if len(turn.split()) >= MIN_OVERLAP_TOKENS)
    return {"".join(filter(str.isalnum, turn.lower())) for turn in long_turns} - {""}
