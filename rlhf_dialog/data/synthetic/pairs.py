"""Pairs of replies to a guest's line, of which one answers it: data for a preference model."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_dialog.data.synthetic.exchanges import Exchange, exchange_splits, new_folder
from rlhf_dialog.data.synthetic.judge import attends
from rlhf_dialog.errors import UserError

ATTEMPTS = 20
PAIRS_FILE = "pairs.jsonl"


@dataclass(frozen=True)
class Pair:
    """A guest's line, the reply that answers it, and one that does not."""

    prompt: str
    chosen: str
    rejected: str

    def to_json(self) -> str:
        """One line of JSON, as preference models read it."""
        return json.dumps({"prompt": [self.prompt], "chosen": self.chosen, "rejected": self.rejected})


def write_pairs(output: Path, number: int, num_exchanges: int, seed: int) -> None:
    """Write `number` pairs into `output/pairs.jsonl`, a new folder; their lines are those of the same exchanges' training split.

    Raises UserError as `write_exchanges` does, and when `number` is not positive.
    """
    if number < 1:
        raise UserError(f"--pairs {number} is not a number of pairs; give 1 or more")
    exchanges = exchange_splits(num_exchanges, seed)["train"]
    with new_folder(output) as folder:
        lines = (f"{pair.to_json()}\n" for pair in pairs_of(exchanges, number, random.Random(f"pairs {seed}")))
        (folder / PAIRS_FILE).write_text("".join(lines), encoding="utf-8", newline="\n")


def pairs_of(exchanges: Sequence[Exchange], number: int, rng: random.Random) -> Iterator[Pair]:
    """`number` pairs from the exchanges; the rejected reply is of each kind of `FAULTS` in turn."""
    replies = [exchange.reply for exchange in exchanges]
    for index in range(number):
        exchange = rng.choice(exchanges)
        fault = FAULTS[index % len(FAULTS)]
        tries = (fault(exchange, replies, rng) for _ in range(ATTEMPTS))
        rejected = next((reply for reply in tries if not attends(exchange.prompt, reply)), None)
        yield Pair(exchange.prompt, exchange.reply, rejected or careless(exchange, replies, rng))


def careless(one: Exchange, replies: list[str], rng: random.Random) -> str:
    """What somebody answers who does not listen."""
    return one.with_careless_reply(rng).reply


def beside_the_point(one: Exchange, replies: list[str], rng: random.Random) -> str:
    """A reply to somebody else."""
    return rng.choice(replies)


def splice_replies(one: Exchange, replies: list[str], rng: random.Random) -> str:
    """The beginning of the right reply with the end of another one."""
    own, other = one.reply.split(), rng.choice(replies).split()
    return " ".join(own[: rng.randint(1, len(own) - 1)] + other[rng.randint(1, len(other) - 1) :])


FAULTS: tuple[Callable[[Exchange, list[str], random.Random], str], ...] = (
    careless,
    careless,
    beside_the_point,
    splice_replies,
)
