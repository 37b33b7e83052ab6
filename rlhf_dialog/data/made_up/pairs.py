"""Pairs of replies to made-up dialogues, of which the grammar prefers one: data for a preference model."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_dialog.data.made_up.dialogues import Dialogue, Teller, dialogue_splits, load_grammar, new_folder
from rlhf_dialog.data.made_up.judge import attends
from rlhf_dialog.errors import UserError

ATTEMPTS = 20
PAIRS_FILE = "pairs.jsonl"


@dataclass(frozen=True)
class Pair:
    """A prompt of one or two turns, the reply that attends to it, and one that does not."""

    prompt: list[str]
    chosen: str
    rejected: str

    def to_json(self) -> str:
        """One line of JSON, as preference models read it."""
        return json.dumps({"prompt": self.prompt, "chosen": self.chosen, "rejected": self.rejected})


def write_pairs(output: Path, number: int, num_dialogues: int, seed: int, scene_names: Sequence[str] = ()) -> None:
    """Write `number` pairs from the training dialogues of the same arguments into `output/pairs.jsonl`, a new folder.

    Raises UserError as `write_dialogues` does, and when `number` is not positive.
    """
    if number < 1:
        raise UserError(f"--pairs {number} is not a number of pairs; give 1 or more")
    dialogues = dialogue_splits(num_dialogues, seed, scene_names)["train"]
    with new_folder(output) as folder:
        lines = (f"{pair.to_json()}\n" for pair in pairs_of(dialogues, number, random.Random(f"pairs {seed}")))
        (folder / PAIRS_FILE).write_text("".join(lines), encoding="utf-8", newline="\n")


def pairs_of(dialogues: Sequence[Dialogue], number: int, rng: random.Random) -> Iterator[Pair]:
    """`number` pairs from the replies of the dialogues; the rejected reply is of each kind of `FAULTS` in turn."""
    replies = [turn for turns, _ in dialogues for turn in turns[1:]]
    for index in range(number):
        turns, _ = rng.choice(dialogues)
        at = rng.randrange(1, len(turns))
        prompt, chosen = turns[max(0, at - 2) : at], turns[at]
        fault = FAULTS[index % len(FAULTS)]
        tries = (fault(chosen, prompt, replies, rng) for _ in range(ATTEMPTS))
        rejected = next((reply for reply in tries if not attends(prompt[-1], reply)), None)
        yield Pair(prompt, chosen, rejected or careless(chosen, prompt, replies, rng))


def careless(chosen: str, prompt: list[str], replies: list[str], rng: random.Random) -> str:
    """A reply of somebody who does not listen."""
    line = rng.choice([line for lines in load_grammar().careless.values() for line in lines])
    return Teller(rng, load_grammar()).tell(line)


def beside_the_point(chosen: str, prompt: list[str], replies: list[str], rng: random.Random) -> str:
    """A reply from another place."""
    return rng.choice(replies)


def garbled(chosen: str, prompt: list[str], replies: list[str], rng: random.Random) -> str:
    """The beginning of the chosen reply with the end of another one."""
    own, other = chosen.split(), rng.choice(replies).split()
    return " ".join(own[: rng.randint(1, len(own) - 1)] + other[rng.randint(1, len(other) - 1) :])


def repeated(chosen: str, prompt: list[str], replies: list[str], rng: random.Random) -> str:
    """A turn of the prompt, said again."""
    return rng.choice(prompt)


FAULTS: tuple[Callable[[str, list[str], list[str], random.Random], str], ...] = (
    careless,
    beside_the_point,
    garbled,
    careless,
    beside_the_point,
    garbled,
    repeated,
)
