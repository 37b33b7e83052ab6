"""The made-up dialogues: files, splits, acts, and answers that fit their questions."""

from pathlib import Path

import pytest

from experiments.everyday_dialogues import dialogues as made_up

SPLITS = ("train", "validation", "test")


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


def test_layout(folder):
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.txt")} == {
        f"{split}/dialogues_{kind}{split}.txt" for split in SPLITS for kind in ("", "act_")
    }
    assert {split: len(read(folder, split)) for split in SPLITS} == {"train": 2400, "validation": 300, "test": 300}
    for turns, acts in (dialogue for split in SPLITS for dialogue in read(folder, split)):
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


def test_lines_answer_what_was_asked():
    lines = [made_up._line(text) for text in ("?when On Monday .", "?where,who In town . #far", "I see .")]
    assert [line.text for line in lines] == ["On Monday .", "In town .", "I see ."]
    assert lines[1].asks == "far"
    move = made_up.Move(1, ["end"], lines)
    assert move.fitting("when") == [lines[0]]
    assert move.fitting("who") == [lines[1]]
    assert move.fitting(None) == move.fitting("why") == [lines[2]]
