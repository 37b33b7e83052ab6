"""Exchanges at the front desk of a made-up hotel, a line of a guest and one of the receptionist: the data of the quickstart.

The text comes from the rules in `desk.yaml` and a seed.
"""

import functools
import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_dialog.errors import UserError
from rlhf_dialog.yaml_files import parse_yaml

ACTS = {"inform": 1, "question": 2, "directive": 3, "commissive": 4}
HELD_OUT = 0.1  # of the exchanges, for validation and for test each
MIN_DIALOGUES = 20
DESK = Path(__file__).with_name("desk.yaml")
GREETED, WITH_ASIDE, IN_LOWER_CASE, UNMARKED, IN_DIGITS = 0.15, 0.25, 0.35, 0.25, 0.25  # shares of the guest's lines

_ARTICLE = re.compile(r"\b([Aa])(?= (?!one\b|uni|use)[aeiou])")
_SLOT = re.compile(r"\{(\w+)\}")

Slots = Mapping[str, str]
Thing = dict[str, str]


_GROUP = re.compile(r"\[([^][()]*)\]|\(([^][()]*)\)|<(\w+)>")
_TOKEN = re.compile(r"<(\w+)>|\{(\w+)\}|[()\[\]|]|[^()\[\]|<>{}]+")
_BRACKETS = {"(": "(?:", ")": ")", "[": "(?:", "]": ")?", "|": "|"}
_MARKS = re.compile(r"[^\w\s']")
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
DIGITS = {word: str(number) for number, word in enumerate(_NUMBERS, start=2)}
_WORDS = {digits: word for word, digits in DIGITS.items()}

Words = Mapping[str, list[str]]


def alternatives(text: str) -> list[str]:
    """The alternatives of a word list: split at every `|` outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def expand(line: str, words: Words, rng: random.Random) -> str:
    """The line with every `(a|b)` replaced by one alternative, `[a]` by a or nothing, `<x>` by a word of list x."""
    while group := _GROUP.search(line):
        optional, either, name = group.groups()
        if name is not None:
            part = rng.choice(words[name])
        elif optional is not None:
            part = rng.choice([*optional.split("|"), ""])
        else:
            part = rng.choice(either.split("|"))
        line = f"{line[: group.start()]}{part}{line[group.end() :]}"
    return line


def normal(text: str) -> str:
    """Lower case, a space before each word, no punctuation, `a` for `an`, words for the numbers 2 to 11."""
    words = _MARKS.sub(" ", text.lower()).split()
    return "".join(" a" if word == "an" else f" {_WORDS.get(word, word)}" for word in words)


def expression(line: str, words: Words) -> str:
    """A regular expression for the normalised wordings of a line; `{list}` becomes a group of that name."""
    return "".join(_expressions(line, words))


def _expressions(line: str, words: Words) -> Iterator[str]:
    for token in _TOKEN.finditer(line):
        if name := token[1] or token[2]:
            opening = f"(?P<{name}>" if token[2] else "(?:"
            yield f"{opening}{'|'.join(expression(word, words) for word in words[name])})"
        else:
            yield _BRACKETS.get(token[0]) or re.escape(normal(token[0]))


@dataclass(frozen=True)
class Kind:
    """One kind of question: its name, the act of the answer, and the lines of the guest and of the receptionist."""

    name: str
    act: str | None  # None: the thing says it
    guest: list[str]
    clerk: list[str]


@dataclass(frozen=True)
class Subject:
    """Things of which a guest speaks in the same kinds of questions."""

    name: str
    things: list[Thing]
    kinds: list[Kind]
    weight: float  # how often it is drawn, in proportion


@dataclass(frozen=True)
class Topic:
    """What an exchange is about: a kind of question about one thing, and the words of its slots."""

    subject: Subject
    thing: int
    kind: int
    slots: Slots

    @property
    def act(self) -> int:
        kind, thing = self.subject.kinds[self.kind], self.subject.things[self.thing]
        return ACTS[kind.act or thing["act"]]

    def misunderstand(self) -> "Topic":
        """What a careless receptionist takes it for: the next kind, or with one kind the next thing and the next words."""
        subject = self.subject
        if len(subject.kinds) > 1:
            return Topic(subject, self.thing, (self.kind + 1) % len(subject.kinds), self.slots)
        others = {name: _next(load_desk().words[name], word) for name, word in self.slots.items()}
        return Topic(subject, (self.thing + 1) % len(subject.things), self.kind, others)


@dataclass(frozen=True)
class Desk:
    """The parsed rules."""

    words: dict[str, list[str]]
    subjects: list[Subject]


@dataclass(frozen=True)
class Exchange:
    """A guest's line, the receptionist's reply, the act of that reply (1 inform to 4 commissive), and what the guest means."""

    prompt: str
    reply: str
    act: int
    topic: Topic = field(compare=False, repr=False)

    def to_json(self) -> str:
        """One row as `PromptRules.load` reads it."""
        return json.dumps({"prompt": [self.prompt], "reference": self.reply, "act": self.act})

    def with_careless_reply(self, rng: random.Random) -> "Exchange":
        """The same line of the guest with a careless reply and its act."""
        meant = self.topic.misunderstand()
        return Exchange(self.prompt, write_clerk_line(meant, rng), meant.act, self.topic)


@functools.cache
def load_desk() -> Desk:
    """The rules of `desk.yaml`, which explains the notation."""
    rules = parse_yaml(DESK.read_text(encoding="utf-8"))
    words = {name: alternatives(text) for name, text in rules["words"].items()}
    return Desk(words, [_subject(name, body) for name, body in rules["subjects"].items()])


def _subject(name: str, body: dict[str, Any]) -> Subject:
    kinds = [
        Kind(kind, rules.get("act"), rules["guest"].strip().splitlines(), rules["clerk"].strip().splitlines())
        for kind, rules in body["kinds"].items()
    ]
    things = [*body["things"].values()]
    return Subject(name, things, kinds, body.get("weight", len(things) * len(kinds)))


def _next(words: list[str], word: str) -> str:
    return words[(words.index(word) + 1) % len(words)]


def draw_topic(rng: random.Random) -> Topic:
    """A topic: a subject by its weight, then a kind and a thing of it, and a word for each slot."""
    desk = load_desk()
    (subject,) = rng.choices(desk.subjects, [one.weight for one in desk.subjects])
    kind, thing = rng.randrange(len(subject.kinds)), rng.randrange(len(subject.things))
    lines = subject.kinds[kind].guest + subject.kinds[kind].clerk
    names = dict.fromkeys(name for line in lines for name in _SLOT.findall(line) if name in desk.words)
    return Topic(subject, thing, kind, {name: rng.choice(desk.words[name]) for name in names})


def write_guest_line(topic: Topic, rng: random.Random) -> str:
    """A line of the guest as people type it: some after a greeting, with an aside, in lower case, or with digits."""
    text = _told(topic, rng.choice(topic.subject.kinds[topic.kind].guest), rng)
    if rng.random() < GREETED and topic.subject.name != "talk":
        text = f"{_sentence(rng.choice(load_desk().words['hi']))}, {text[:1].lower()}{text[1:]}"
    if rng.random() < WITH_ASIDE and topic.subject.name != "talk":
        aside = _sentence(expand("<aside>.", load_desk().words, rng))
        first, last = (aside, text) if rng.random() < 0.5 else (text, aside)
        text = f"{first}{'' if first[-1] in '.?!' else '.'} {last}"
    if rng.random() < UNMARKED:
        text = text.rstrip(".?!")
    if rng.random() < IN_DIGITS:
        text = re.sub(r"[a-z]+", lambda word: DIGITS.get(word[0], word[0]), text)
    return text.lower() if rng.random() < IN_LOWER_CASE else text


def write_clerk_line(topic: Topic, rng: random.Random) -> str:
    """A line of the receptionist about the topic."""
    return _told(topic, rng.choice(topic.subject.kinds[topic.kind].clerk), rng)


def _told(topic: Topic, line: str, rng: random.Random) -> str:
    fields = {**topic.slots, **topic.subject.things[topic.thing]}
    text = expand(_SLOT.sub(lambda slot: f"({fields[slot[1]]})", line), load_desk().words, rng)
    return _sentence(_ARTICLE.sub(r"\1n", text))


def _sentence(text: str) -> str:
    """Single spaces, no space before a mark, and capitals where sentences begin."""
    text = re.sub(r"\s+([,.?!])", r"\1", " ".join(text.split()))
    return re.sub(r"(?:^|[.?!] )[a-z]", lambda start: start[0].upper(), text)


def draw_exchange(rng: random.Random) -> Exchange:
    """One exchange in which the receptionist listens."""
    topic = draw_topic(rng)
    return Exchange(write_guest_line(topic, rng), write_clerk_line(topic, rng), topic.act, topic)


def exchange_splits(number: int, seed: int, careless: float = 0.0) -> dict[str, list[Exchange]]:
    """`number` exchanges in all splits, 80, 10 and 10 percent; short lines come up more than once, as they do at a desk.

    Raises UserError when there are too few to split, or `careless` is not between 0 and 1.
    """
    if not 0 <= careless <= 1:
        raise UserError(f"--careless {careless:g} is not a share; give a number from 0 to 1")
    if number < MIN_DIALOGUES:
        raise UserError(f"--num_dialogues {number} is too few to split; give {MIN_DIALOGUES} or more")
    rng, careless_rng = random.Random(f"exchanges {seed}"), random.Random(f"careless {seed}")
    drawn = [draw_exchange(rng) for _ in range(number)]
    ordered = [one.with_careless_reply(careless_rng) if careless_rng.random() < careless else one for one in drawn]
    held_out = round(HELD_OUT * number)
    train, validation, test = ordered[2 * held_out :], ordered[:held_out], ordered[held_out : 2 * held_out]
    return {"train": train, "validation": validation, "test": test}


def write_exchanges(output: Path, number: int, seed: int, careless: float = 0.0) -> dict[str, int]:
    """Write `number` exchanges into the folder `output` as train.jsonl, validation.jsonl and test.jsonl.

    Returns the number in each split. The same arguments give the same bytes. Raises UserError as `exchange_splits` does.
    """
    splits = exchange_splits(number, seed, careless)
    output.mkdir(parents=True, exist_ok=True)
    for name, exchanges in splits.items():
        lines = "".join(f"{one.to_json()}\n" for one in exchanges)
        (output / f"{name}.jsonl").write_text(lines, encoding="utf-8", newline="\n")
    return {name: len(exchanges) for name, exchanges in splits.items()}
