"""The notation of made-up lines, `(a|b)`, `[a]`, `<list>`: how one wording is chosen, and how all of them are read."""

import random
import re
from collections.abc import Iterator, Mapping

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
