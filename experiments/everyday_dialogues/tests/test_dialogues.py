"""The made-up dialogues: files, splits, acts, and answers that fit their questions."""

import re
from pathlib import Path

import pytest

from experiments.everyday_dialogues import dialogues as made_up

SPLITS = ("train", "validation", "test")
INFORM, COMMISSIVE = 1, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("dialogues") / "data"
    made_up.write_dialogues(path, 3000, 0)
    return path


def read(folder: Path, split: str) -> list[tuple[list[str], list[int]]]:
    """The dialogues of a split, read as the data set's own note says."""
    texts = (folder / split / f"dialogues_{split}.txt").read_text(encoding="ascii").splitlines()
    acts = (folder / split / f"dialogues_act_{split}.txt").read_text(encoding="ascii").splitlines()
    assert len(texts) == len(acts)
    turns = [[turn.strip() for turn in text.split("__eou__")[:-1]] for text in texts]
    return [(one, [int(digit) for digit in line.split(" ")]) for one, line in zip(turns, acts, strict=True)]


@pytest.fixture(scope="module")
def dialogues(folder) -> list[tuple[list[str], list[int]]]:
    return [dialogue for split in SPLITS for dialogue in read(folder, split)]


def replies(dialogues, pattern: str) -> list[tuple[re.Match, str, int]]:
    """(match, next turn, its act) of every turn that matches the whole pattern."""
    found = []
    for turns, acts in dialogues:
        for index, turn in enumerate(turns[:-1]):
            if match := re.fullmatch(pattern, turn):
                found.append((match, turns[index + 1], acts[index + 1]))
    return found


def test_layout(folder, dialogues):
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.txt")} == {
        f"{split}/dialogues_{kind}{split}.txt" for split in SPLITS for kind in ("", "act_")
    }
    assert {split: len(read(folder, split)) for split in SPLITS} == {"train": 2400, "validation": 300, "test": 300}
    for turns, acts in dialogues:
        assert len(turns) == len(acts)
        assert 4 <= len(turns) <= 9
        assert set(acts) <= {1, 2, 3, 4}
    line = (folder / "test" / "dialogues_test.txt").read_text().splitlines()[0]
    assert line == " ".join(f"{turn} __eou__" for turn in read(folder, "test")[0][0])


def test_dialogues_are_different_and_held_out(folder):
    splits = {split: {" ".join(turns) for turns, _ in read(folder, split)} for split in SPLITS}
    assert [len(splits[split]) for split in SPLITS] == [2400, 300, 300]
    assert not splits["train"] & (splits["validation"] | splits["test"])
    assert not splits["validation"] & splits["test"]


def test_a_price_question_gets_a_price(dialogues):
    found = replies(dialogues, r"(?:How much (?:is|are)|What is the price of) the (.+?)(?: cost)? \?")
    money = [(match, reply) for match, reply, act in found if act == INFORM and "dollars" in reply]
    assert len(money) > 100
    garments = [(m[1], reply) for m, reply in money if m[1].split()[0] in ("red", "blue", "green", "black", "white")]
    assert len(garments) > 10
    for garment, reply in garments:
        assert garment.split()[-1] in reply
        assert (" are " in reply or " cost " in reply) == (garment.endswith("s") and not garment.endswith("dress"))


def test_lines_answer_what_was_asked():
    lines = [made_up._line(text) for text in ("?when On Monday .", "?where,who In town . #far", "I see .")]
    assert [line.text for line in lines] == ["On Monday .", "In town .", "I see ."]
    assert lines[1].asks == "far"
    move = made_up.Move(1, ["end"], lines)
    assert move.fitting("when") == [lines[0]]
    assert move.fitting("who") == [lines[1]]
    assert move.fitting(None) == move.fitting("why") == [lines[2]]
