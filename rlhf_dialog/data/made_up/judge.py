"""Reads made-up dialogues by the rules that wrote them: is a reply a sentence of the grammar, and does it fit the turn before?"""

import functools
import itertools
import re
from collections.abc import Iterator

from rlhf_dialog.data.made_up.dialogues import END, Grammar, Line, load_grammar

Slots = dict[str, str]

_TOKEN = re.compile(r"\{(\w+)(?::(\w+))?\}|<(\w+)>|[()\[\]|]|[^\s()\[\]|{}<>]+")
_SEEN_BY_LISTENER = {"me": "you", "you": "me"}
_BRACKETS = {"(": "(?:", ")": ")", "[": "(?:", "]": ")?", "|": "|"}


def derives(text: str) -> bool:
    """Whether the grammar can write `text`: a line of a scene or a careless reply, in whole words. Case does not count."""
    return is_careless(text) or any(True for _ in _readings(_normal(text)))


def is_careless(text: str) -> bool:
    """Whether `text` is one of the careless replies."""
    return any(pattern.fullmatch(_normal(text)) for pattern in _careless_patterns())


def attends(last_turn: str, reply: str) -> bool:
    """Whether a move of the grammar that may follow `last_turn` says `reply`, about the same things.

    Only the last turn is read: a dish that was named before it may be another one.
    """
    answers = [*_readings(_normal(reply))]
    for scene, said, line, slots in _readings(_normal(last_turn)):
        named = {_SEEN_BY_LISTENER.get(slot, slot): word for slot, word in slots.items()}
        for other_scene, name, answer, in_reply in answers:
            agree = all(named.get(slot, word) == word for slot, word in in_reply.items())
            if agree and scene == other_scene and answer in _following(scene, said, line).get(name, []):
                return True
    return False


def _following(scene: str, move: str, line: Line) -> dict[str, list[Line]]:
    moves = load_grammar().scenes[scene]
    return {name: moves[name].fitting(line.asks) for name in moves[move].following if name != END}


def _readings(text: str) -> Iterator[tuple[str, str, Line, Slots]]:
    """Every way to read a normalised text: the scene, the move, the line, and the words of its slots."""
    for scene, move, line, pattern in _patterns():
        if match := pattern.fullmatch(text):
            slots: dict[str, set[str]] = {}
            for name, word in match.groupdict().items():
                slots.setdefault(name.partition("_")[0], set()).update([word] if word else [])
            if all(len(words) <= 1 for words in slots.values()):
                yield scene, move, line, {slot: words.pop() for slot, words in slots.items() if words}


def _normal(text: str) -> str:
    """Lower case, one space before each word, `a` for `an`."""
    return "".join(" a" if word == "an" else f" {word}" for word in text.lower().replace("'", " ' ").split())


@functools.cache
def _patterns() -> list[tuple[str, str, Line, re.Pattern[str]]]:
    grammar = load_grammar()
    return [
        (scene, name, line, _pattern(line.text, grammar))
        for scene, moves in grammar.scenes.items()
        for name, move in moves.items()
        for line in move.lines
    ]


@functools.cache
def _careless_patterns() -> list[re.Pattern[str]]:
    grammar = load_grammar()
    return [_pattern(line, grammar) for lines in grammar.careless.values() for line in lines]


def _pattern(line: str, grammar: Grammar) -> re.Pattern[str]:
    """The normalised texts of a line; its slots are groups `SLOT_NUMBER`."""
    return re.compile("".join(_expressions(line, grammar, itertools.count())))


def _expressions(text: str, grammar: Grammar, numbers: Iterator[int] | None = None) -> Iterator[str]:
    """Regular expressions for the parts of a line or word; slots are named groups if `numbers` is given."""
    for token in _TOKEN.finditer(text):
        slot, form, words = token.groups()
        if words or form:
            yield _any_of(grammar.words[words] if words else [*grammar.forms[form].values()], grammar)
        elif slot:
            of_list = "person" if slot in _SEEN_BY_LISTENER else slot.rstrip("23AB")
            name = "" if numbers is None else f"?P<{slot}_{next(numbers)}>"
            yield f"({name or '?:'}{_any_of(grammar.words[of_list], grammar)})"
        elif token[0] in _BRACKETS:
            yield _BRACKETS[token[0]]
        else:
            ends_word = token.start() > 0 and text[token.start() - 1] == "}"  # the s of {genre}s
            yield re.escape(_normal(token[0])[ends_word and token[0].isalpha() :])


def _any_of(words: list[str], grammar: Grammar) -> str:
    return f"(?:{'|'.join(''.join(_expressions(word.partition('/')[0], grammar)) for word in words)})"
