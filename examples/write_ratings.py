"""Write `ratings.jsonl`: 200 made-up ratings of answers, marked as samples, for a bot that nobody has rated yet.

    python examples/write_ratings.py examples/ratings.jsonl

A hundred lines of made-up guests, each with the answer that attends to it (liked) and a careless one (disliked), in the format of
`rlhf-dialog feedback export`. The kinds of questions about a subject come in turn: a careless answer is right
elsewhere, and ratings that dislike one kind more often than they like it would teach that it is always wrong. A fifth of the
prompts is held out, as a fifth of all dialogues is.
"""

import hashlib
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rlhf_dialog.data.synthetic.exchanges import Exchange, exchange_splits
from rlhf_dialog.data.synthetic.pairs import attends
from rlhf_dialog.feedback.store.formats.native import FORMAT
from rlhf_dialog.feedback.store.store import HELDOUT, SAMPLES, is_heldout

NUM_LINES = 100
SEED = 3  # of exchanges that the quickstart does not train on
WRITTEN = 1_790_000_000.0  # seconds of the epoch


def identifier(place: str, held_out: bool) -> str:
    """The first id of a dialogue, counted through, that is held out or not."""
    ids = (hashlib.sha256(f"{place} {number}".encode()).hexdigest()[:32] for number in range(10**6))
    return next(one for one in ids if is_heldout(one) == held_out)


def turn(number: int, position: int, text: str, is_answer: bool) -> dict:
    """A turn in the format of an export; nothing sampled it."""
    unknown = dict.fromkeys(("token_ids", "logprobs", "sampling", "version"))
    speaker = "agent" if is_answer else "user"
    return {"id": number, "position": position, "speaker": speaker, "text": text, **unknown, "created": WRITTEN}


def row(place: str, prompt: list[str], answer: str, liked: bool, held_out: bool) -> dict:
    """A dialogue with one rated answer."""
    name, last = identifier(place, held_out), len(prompt)
    turns = [turn(i + 1, i, text, (last - i) % 2 == 0) for i, text in enumerate([*prompt, answer])]
    thumb = {"id": 1, "turn": last + 1, "kind": "thumb", "value": 1 if liked else -1, "text": None, "other": None}
    return {
        "format": FORMAT,
        "format_version": 1,
        "bot": "samples",
        "dialogue": {"id": name, "started": WRITTEN, "person": SAMPLES, "source": "samples", "heldout": held_out},
        "turns": turns,
        "feedback": [{**thumb, "person": SAMPLES, "created": WRITTEN}],
    }


def lines(rng: random.Random) -> Iterator[tuple[Exchange, str]]:
    """Exchanges of different lines, each with a careless reply that does not attend to it; kinds in turn within each subject."""
    drawn = exchange_splits(2000, SEED)["train"]
    of_kind: dict[tuple[str, int], list[Exchange]] = defaultdict(list)
    for exchange in {one.prompt: one for one in reversed(drawn)}.values():
        of_kind[exchange.topic.subject.name, exchange.topic.kind].append(exchange)
    counts: Counter[str] = Counter()
    for subject in (one.topic.subject for one in drawn):
        exchange = of_kind[subject.name, counts[subject.name] % len(subject.kinds)].pop()
        careless = exchange.with_careless_reply(rng).reply
        if not attends(exchange.prompt, careless):
            counts[subject.name] += 1
            yield exchange, careless


def rows() -> list[dict]:
    """All dialogues, prompts in the order of the lines."""
    return [
        row(f"{number} {liked}", [exchange.prompt], answer, liked, number % HELDOUT == 0)
        for number, (exchange, careless) in enumerate(islice(lines(random.Random(SEED)), NUM_LINES))
        for answer, liked in ((exchange.reply, True), (careless, False))
    ]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("".join(f"{json.dumps(one)}\n" for one in rows()), encoding="utf-8")
