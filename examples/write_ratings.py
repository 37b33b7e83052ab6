"""Write `ratings.jsonl`: 200 made-up ratings of answers, marked as samples, for a bot that nobody has rated yet.

    python examples/write_ratings.py examples/ratings.jsonl

A hundred lines of made-up guests, each with the answer that attends to it (liked) and one that does not (disliked), in the
format of `rlhf-dialog feedback export`. A fifth of the prompts is held out, as a fifth of all dialogues is.
"""

import hashlib
import json
import random
import sys
from pathlib import Path

from rlhf_dialog.data.synthetic.exchanges import exchange_splits
from rlhf_dialog.data.synthetic.pairs import pairs_of
from rlhf_dialog.feedback.store.formats.native import FORMAT, VERSION
from rlhf_dialog.feedback.store.store import HELDOUT, SAMPLES, is_heldout

NUM_PAIRS = 100
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
        "format_version": VERSION,
        "bot": "samples",
        "dialogue": {"id": name, "started": WRITTEN, "person": SAMPLES, "source": "samples", "heldout": held_out},
        "turns": turns,
        "feedback": [{**thumb, "person": SAMPLES, "created": WRITTEN}],
    }


def rows() -> list[dict]:
    """All dialogues, prompts in the order of the pairs."""
    pairs = pairs_of(exchange_splits(200, SEED)["train"], NUM_PAIRS, random.Random(SEED))
    return [
        row(f"{number} {liked}", [pair.prompt], answer, liked, number % HELDOUT == 0)
        for number, pair in enumerate(pairs)
        for answer, liked in ((pair.chosen, True), (pair.rejected, False))
    ]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("".join(f"{json.dumps(one)}\n" for one in rows()), encoding="utf-8")
