"""The conversations with a name for the person in them: prompts whose right answer stands in the prompt alone.

A row is a piece of a conversation, two or four turns from a drawn place. The person who begins it says the name, in its
first or in its newest turn. Names of `held_out_names` are in validation and test alone, and no others are there. Train has
also the lines of `hard_lines.txt`, of people in distress or anger, and those of `questions.txt`, neither of which chitchat has;
every other one says the name.
"""

import csv
import random
import re
import unicodedata
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from experiments.smollm2.conversations import dialogues_of, split_of, write_splits
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError

NAMES = Path(__file__).with_name("names.tsv")  # name, language, tokens of SmolLM2 behind a space
HARD = Path(__file__).with_name("hard_lines.txt")
QUESTIONS = Path(__file__).with_name("questions.txt")
COPIES = {HARD: 28, QUESTIONS: 14}  # of each line: one of four training prompts is hard, one of sixteen is a question
LINES = Path(__file__).with_name(
    "thirty_lines.jsonl"
)  # sad, angry and factual lines for readers; no run trains on them
SYSTEM = "You are chatting with {name}. Call them by name, and answer in one or two short sentences."
HELD_OUT = 6  # one name in so many
LONGEST = 4  # turns of a piece, its last reply among them
BEFORE = ("Hi, I'm {name}.", "Hello, {name} here.", "My name is {name}.", "I'm {name}.", "Hey, this is {name}.")
BEHIND = (
    "I'm {name}, by the way.",
    "My name's {name}.",
    "You can call me {name}.",
    "I am {name}.",
    "(My name is {name}.)",
)
SAYS_A_NAME = re.compile(r"\b[Nn]ames?\b|\b(?:[Hh]i|[Hh]ey|[Hh]ello|[Ii]'?m|[Ii] am),? [A-Z][a-z]+")


@cache
def all_names() -> tuple[str, ...]:
    """The names of the list."""
    return tuple(row["name"] for row in _rows())


@cache
def held_out_names() -> tuple[str, ...]:
    """Those that no training row has: one of every six, of names in the order of their numbers of tokens."""
    draw, rows = random.Random(0), sorted(_rows(), key=lambda row: int(row["tokens"]))
    return tuple(draw.choice(rows[i : i + HELD_OUT])["name"] for i in range(0, len(rows), HELD_OUT))


def tokens_of(name: str) -> int:
    """The number of tokens of a name of the list."""
    return next(int(row["tokens"]) for row in _rows() if row["name"] == name)


def _rows() -> list[dict[str, str]]:
    with NAMES.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def write_named(wheel: Path, folder: Path) -> str:
    """`train.jsonl`, `validation.jsonl` and `test.jsonl`; returns what was written, in words. Raises UserError for damage."""
    rows: dict[str, list[Any]] = {split: [] for split in ("train", "validation", "test")}
    says_one = re.compile(rf"(?<![^\W\d_])(?:{'|'.join(all_names())})(?![^\W\d_])", re.IGNORECASE)
    held_out = held_out_names()
    trained = tuple(name for name in all_names() if name not in held_out)
    left_out = 0
    for conversation, turns in dialogues_of(wheel).items():
        if len(turns) < 2:
            continue
        draw, split = random.Random(conversation), split_of(conversation)
        piece = piece_of(turns, draw)
        texts = [unicodedata.normalize("NFC", text) for text in piece]
        if any(SAYS_A_NAME.search(text) or says_one.search(text) for text in texts):
            left_out += 1
            continue
        name = draw.choice(trained if split == "train" else held_out)
        row = {"dialog": named(piece, name, draw), "name": name, "system": SYSTEM.format(name=name)}
        rows[split].append({**row, "conversation": conversation, "hard": False})
    rows["train"] += line_rows(HARD, trained) + line_rows(QUESTIONS, trained)
    return f"{write_splits(rows, folder)} pieces of conversations and lines; {left_out} that say a name left out"


def line_rows(path: Path, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Rows of one turn, each line of the file several times with drawn names."""
    draw, rows = random.Random(0), []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        for copy in range(COPIES[path]):
            name = draw.choice(names)
            dialog = named([line], name, draw) if copy % 2 else [{"role": "user", "content": line}]
            row = {"dialog": dialog, "name": name, "system": SYSTEM.format(name=name)}
            rows.append({**row, "conversation": f"{path.name}:{number + 1}", "hard": path == HARD})
    return rows


def piece_of(turns: list[str], draw: random.Random) -> list[str]:
    """Two or four turns from a drawn place; four where there are as many."""
    length = min(len(turns), LONGEST) // 2 * 2
    start = draw.randint(0, len(turns) - length)
    return turns[start : start + length]


def named(piece: list[str], name: str, draw: random.Random) -> list[dict[str, Any]]:
    """The turns as messages of a user and an assistant; the user says the name in the first or in the newest turn."""
    says = 2 * draw.randrange((len(piece) + 1) // 2)
    text, sentence = piece[says], draw.choice((*BEFORE, *BEHIND)).format(name=name)
    if sentence in {words.format(name=name) for words in BEFORE}:
        said = f"{sentence} {text}"
    else:
        said = f"{text}{'.' if text[-1].isalnum() else ''} {sentence}"
    return [
        {"role": ("user", "assistant")[i % 2], "content": said if i == says else turn} for i, turn in enumerate(piece)
    ]


def without_name(dialogue: Dialogue) -> Dialogue:
    """The dialogue without the name that its `meta` has, in prompt and reply; as it is where there is none."""
    if "name" not in dialogue.meta:
        return dialogue
    pattern = re.compile(rf",?\s*(?<![^\W\d_]){dialogue.meta['name']}(?![^\W\d_])(\s*,)?", re.IGNORECASE)

    def shorten(text: str) -> str:
        words, count = pattern.subn(" ", unicodedata.normalize("NFC", text))
        return re.sub(r"\s+(?=[.!?])", "", " ".join(words.split())) if count else text

    turns = [shorten(turn) for turn in dialogue.prompt_turns]
    return replace(dialogue, prompt_turns=turns, response=shorten(dialogue.response))


def filled(text: str, dialogue: Dialogue) -> str:
    """The text with the name of the dialogue in place of `{name}`. Raises UserError where it has none."""
    if "{name}" not in text:
        return text
    if "name" not in dialogue.meta:
        raise UserError(f"{{name}} in {text!r}: the rows have no column 'name'; remove it, or add the column")
    return text.replace("{name}", dialogue.meta["name"])


def behind_name(dialogue: Dialogue) -> Dialogue:
    """The reply behind the name and a comma, cut at its last whole sentence where it has one."""
    whole = re.match(r".*[.!?]", dialogue.response, re.DOTALL)
    reply = whole[0] if whole else dialogue.response
    if not re.match(r"I\b|[A-Z]{2}", reply):
        reply = reply[:1].lower() + reply[1:]
    return replace(dialogue, response=f"{dialogue.meta['name']}, {reply}", truncated=dialogue.truncated and not whole)
