"""Everyday two-person dialogues: the text comes from the rules in `grammar/` and a seed."""

import functools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from rlhf_dialog.commands.command_line import new_folder
from rlhf_dialog.data.synthetic.exchanges import ACTS, HELD_OUT, MIN_DIALOGUES, alternatives, expand
from rlhf_dialog.errors import UserError

Dialogue = tuple[list[str], list[int]]  # the turns and the act of each

GRAMMAR = Path(__file__).with_name("grammar")
END = "end"  # the `next` word that closes a dialogue
MIN_TURNS, MAX_TURNS = 4, 9
ATTEMPTS_PER_DIALOGUE = 50

_MOVE = re.compile(r"(\w+) (\w+) -> ([\w ]+)")
_LINE = re.compile(r"(?:\?([\w,]+) )?(.*?)(?: #(\w+))?")
_SLOT = re.compile(r"\{(\w+)(?::(\w+))?\}")
_ARTICLE = re.compile(r"\b([Aa])(?= (?!one\b|uni|use)[aeiou])")
_SENTENCE_START = re.compile(r"(?:^|[.?!] )[a-z]")


@dataclass(frozen=True)
class Line:
    """One way to say a move: `asks` is the tag of the question it asks, `answers` the tags of the questions it answers."""

    text: str
    asks: str | None
    answers: frozenset[str]


@dataclass(frozen=True)
class Move:
    """One step of a scene: its act, the moves that may follow, and its lines."""

    act: int
    following: list[str]
    lines: list[Line]

    def fitting(self, asked: str | None) -> list[Line]:
        """The lines that may follow a line that asked `asked`: those that answer it, else those that answer nothing."""
        answers = [line for line in self.lines if asked in line.answers]
        return answers or [line for line in self.lines if not line.answers]


@dataclass(frozen=True)
class Grammar:
    """The parsed rules: word lists, inflections, and the scenes (move name -> Move)."""

    words: dict[str, list[str]]
    forms: dict[str, dict[str, str]]
    scenes: dict[str, dict[str, Move]]


@functools.cache
def load_grammar() -> Grammar:
    """The rules of `grammar/`: `words.yaml`, which explains the notation, and one file per scene."""
    files = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(GRAMMAR.glob("*.yaml"))}
    lists = files.pop("words")
    words = {name: alternatives(text) for name, text in lists["words"].items()}
    return Grammar(words, lists["forms"], {name: _scene(moves) for name, moves in files.items()})


def _scene(rules: dict[str, str]) -> dict[str, Move]:
    scene = {"start": Move(0, rules["start"].split(), [])}
    for key, text in rules.items():
        if key == "start":
            continue
        if not (match := _MOVE.fullmatch(key)):
            raise ValueError(f"not `name act -> next ...`: {key}")
        lines = [_line(row) for row in text.strip().splitlines()]
        scene[match[1]] = Move(ACTS[match[2]], match[3].split(), lines)
    return scene


def _line(text: str) -> Line:
    match = _LINE.fullmatch(text)
    assert match
    return Line(match[2], match[3], frozenset(match[1].split(",") if match[1] else ()))


@dataclass
class Teller:
    """Turns the lines of one dialogue into text; a slot keeps its word for the whole dialogue."""

    rng: random.Random
    grammar: Grammar
    bound: dict[str, str] = field(default_factory=dict)
    turn: int = -1

    def tell(self, line: str) -> str:
        """The line as an utterance: alternatives chosen, slots filled, tokens spaced, sentences capitalised."""
        self.turn += 1
        text = _SLOT.sub(lambda slot: self._fill(slot[1], slot[2]), expand(line, self.grammar.words, self.rng))
        text = _ARTICLE.sub(r"\1n", " ".join(text.replace("'", " ' ").split()))
        return _SENTENCE_START.sub(lambda start: start[0].upper(), text)

    def _fill(self, slot: str, form: str | None) -> str:
        """The word of `slot`, or its inflection `form`; a new slot takes a word that no other slot has."""
        if slot in ("me", "you"):  # the speakers take turns
            slot = "person" + "AB"[(self.turn + (slot == "you")) % 2]
        while slot not in self.bound:
            word = expand(self.rng.choice(self.grammar.words[slot.rstrip("23AB")]), self.grammar.words, self.rng)
            if word not in self.bound.values():
                self.bound[slot] = word
        word, _, mark = self.bound[slot].partition("/")
        if form is None:
            return word
        inflections = self.grammar.forms[form]
        return inflections.get(mark, inflections["default"])


def generate_dialogue(rng: random.Random, scene_names: Sequence[str] = ()) -> tuple[list[str], list[int]]:
    """One dialogue of 4 to 9 turns as (turns, acts), acts 1 inform, 2 question, 3 directive, 4 commissive.

    It uses one of the named scenes, or any scene when none is named.
    """
    grammar = load_grammar()
    scenes = [grammar.scenes[name] for name in scene_names or grammar.scenes]
    while True:
        steps = _walk(rng, rng.choice(scenes))
        if MIN_TURNS <= len(steps) <= MAX_TURNS:
            teller = Teller(rng, grammar)
            return [teller.tell(line.text) for _, line in steps], [act for act, _ in steps]


def _walk(rng: random.Random, scene: dict[str, Move]) -> list[tuple[int, Line]]:
    """A random path through the scene to an end, as (act, line), without repeated moves; empty when it reaches no end."""
    steps: list[tuple[int, Line]] = []
    name, asked, visited = "start", None, {"start"}
    while True:
        following = [
            word
            for word in scene[name].following
            if word == END or (word not in visited and scene[word].fitting(asked))
        ]
        if not following:
            return []
        name = rng.choice(following)
        if name == END:
            return steps
        line = rng.choice(scene[name].fitting(asked))
        steps.append((scene[name].act, line))
        asked = line.asks
        visited.add(name)


def write_dialogues(output: Path, num_dialogues: int, seed: int, scene_names: Sequence[str] = ()) -> dict[str, int]:
    """Write `num_dialogues` different dialogues into the new folder `output`; returns the number in each split.

    The same arguments give the same bytes. Raises UserError when `output` is not empty or the number cannot be reached.
    """
    splits = dialogue_splits(num_dialogues, seed, scene_names)
    with new_folder(output) as folder:
        for name, dialogues in splits.items():
            _write_split(folder / name, name, dialogues)
    return {name: len(dialogues) for name, dialogues in splits.items()}


def dialogue_splits(num_dialogues: int, seed: int, scene_names: Sequence[str] = ()) -> dict[str, list[Dialogue]]:
    """The dialogues of each split, as `write_dialogues` writes them."""
    dialogues = _generate_unique(num_dialogues, seed, scene_names)
    num = round(HELD_OUT * len(dialogues))
    return {"train": dialogues[2 * num :], "validation": dialogues[:num], "test": dialogues[num : 2 * num]}


def _generate_unique(num_dialogues: int, seed: int, scene_names: Sequence[str]) -> list[Dialogue]:
    known = load_grammar().scenes
    if unknown := [name for name in scene_names if name not in known]:
        raise UserError(f"--scenes: unknown scene '{unknown[0]}'; choose from {', '.join(known)}")
    if num_dialogues < MIN_DIALOGUES:
        raise UserError(f"--num_dialogues {num_dialogues} is too few to split; give {MIN_DIALOGUES} or more")
    rng = random.Random(seed)
    dialogues: dict[tuple[str, ...], Dialogue] = {}
    for _ in range(ATTEMPTS_PER_DIALOGUE * num_dialogues):
        turns, acts = generate_dialogue(rng, scene_names)
        dialogues.setdefault(tuple(turns), (turns, acts))
        if len(dialogues) == num_dialogues:
            return list(dialogues.values())
    raise UserError(
        f"--num_dialogues {num_dialogues} is more than the grammar can generate; give {len(dialogues)} or fewer"
    )


def _write_split(folder: Path, name: str, dialogues: list[Dialogue]) -> None:
    folder.mkdir(parents=True)
    text = "".join(" __eou__ ".join(turns) + " __eou__\n" for turns, _ in dialogues)
    acts = "".join(" ".join(map(str, acts)) + "\n" for _, acts in dialogues)
    (folder / f"dialogues_{name}.txt").write_text(text, encoding="utf-8", newline="\n")
    (folder / f"dialogues_act_{name}.txt").write_text(acts, encoding="utf-8", newline="\n")
