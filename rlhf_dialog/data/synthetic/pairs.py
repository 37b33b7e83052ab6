"""Pairs of replies to a guest's line, of which one answers it: data for a preference model."""

import functools
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_dialog.data.synthetic.exchanges import (
    Exchange,
    Slots,
    Subject,
    exchange_splits,
    expression,
    load_desk,
    normal,
)
from rlhf_dialog.errors import UserError

ATTEMPTS = 20
PAIRS_FILE = "pairs.jsonl"


Reading = tuple[str, int, int, Slots]  # subject, number of the thing, number of the kind, words of the slots

_FIELD = re.compile(r"\{(\w+)\}")


def derives(reply: str) -> bool:
    """Whether `reply` is a sentence of the receptionist, true or not. Case and punctuation do not count."""
    return any(pattern.fullmatch(normal(reply)) for pattern in _sentences())


def attends(prompt: str, reply: str) -> bool:
    """Whether the receptionist can say `reply` to this line of a guest: the same thing, kind of question and words of slots."""
    answers = [*_readings("clerk", reply)]
    return any(
        one[:3] == other[:3] and all(one[3].get(slot, word) == word for slot, word in other[3].items())
        for one in _readings("guest", prompt)
        for other in answers
    )


def _readings(side: str, text: str) -> Iterator[Reading]:
    for subject, thing, kind, pattern in _patterns(side):
        if match := pattern.fullmatch(normal(text)):
            yield subject.name, thing, kind, {slot: word for slot, word in match.groupdict().items() if word}


@functools.cache
def _sentences() -> list[re.Pattern[str]]:
    """The receptionist's lines, each with the fields of any thing of its subject."""
    desk, patterns = load_desk(), []
    for subject in desk.subjects:
        names = {name for thing in subject.things for name in thing}
        fields = {name: "|".join(thing[name] for thing in subject.things) for name in names}
        patterns += [re.compile(_expression(line, fields)) for kind in subject.kinds for line in kind.clerk]
    return patterns


@functools.cache
def _patterns(side: str) -> list[tuple[Subject, int, int, re.Pattern[str]]]:
    desk = load_desk()
    aside, greeting = ((expression(f"[<{name}>]", desk.words) if side == "guest" else "") for name in ("aside", "hi"))
    return [
        (subject, thing, kind, re.compile(aside + greeting + _expression(line, subject.things[thing]) + aside))
        for subject in desk.subjects
        for thing in range(len(subject.things))
        for kind in range(len(subject.kinds))
        for line in getattr(subject.kinds[kind], side)
    ]


def _expression(line: str, fields: dict[str, str]) -> str:
    """The normalised wordings of a line about one thing; the slots are named groups."""
    told = _FIELD.sub(lambda name: f"({fields[name[1]]})" if name[1] in fields else name[0], line)
    return expression(told, load_desk().words)


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
    """Write `number` pairs into `output/pairs.jsonl`; their lines are those of the same exchanges' training split.

    Raises UserError as `write_exchanges` does, and when `number` is not positive.
    """
    if number < 1:
        raise UserError(f"--pairs {number} is not a number of pairs; give 1 or more")
    exchanges = exchange_splits(num_exchanges, seed)["train"]
    lines = (f"{pair.to_json()}\n" for pair in pairs_of(exchanges, number, random.Random(f"pairs {seed}")))
    output.mkdir(parents=True, exist_ok=True)
    (output / PAIRS_FILE).write_text("".join(lines), encoding="utf-8", newline="\n")


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


Fault = Callable[[Exchange, list[str], random.Random], str]
FAULTS: tuple[Fault, ...] = (careless, careless, beside_the_point, splice_replies)
