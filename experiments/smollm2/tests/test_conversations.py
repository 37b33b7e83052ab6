"""Conversations become dialogues of turns that alternate."""

import json
import zipfile

from experiments.smollm2.conversations import DATA, split_of, turns_of, write_chitchat
from rlhf_dialog.data.sources import load_records


def message(sender, text):
    return {"text": text, "sender": sender, "timestamp": "2018-05-02T19:38:15Z"}


def test_what_one_says_in_a_row_is_one_turn():
    groups = [
        [message("a", "Hello"), message("a", "  how are\nyou ?")],
        [message("b", "Fine .")],
        [message("b", "You ?")],
    ]
    assert turns_of([*groups, [message("a", " ")], [message("b", "Well ?"), message("a", "Good .")]]) == [
        "Hello how are you ?",
        "Fine . You ? Well ?",
        "Good .",
    ]


def test_a_conversation_has_its_split_and_the_shares_are_those_wanted():
    splits = [split_of(str(number)) for number in range(4000)]
    assert splits == [split_of(str(number)) for number in range(4000)]
    assert 150 < splits.count("test") < 250
    assert 150 < splits.count("validation") < 250


def wheel_of(tmp_path, conversations):
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(DATA, conversations if isinstance(conversations, str) else json.dumps(conversations))
    return path


def test_the_files_are_read_as_data(tmp_path):
    talk = {"messages": [[message("a", "Hello 🙂")], [message("b", "Good morning .")]]}
    alone = {"messages": [[message("a", "Hello"), message("a", "?")]]}
    written = write_chitchat(wheel_of(tmp_path, {str(n): talk for n in range(60)} | {"x": alone}), tmp_path)
    counts = {split: len(load_records(str(tmp_path), split)) for split in ("train", "validation", "test")}
    assert sum(counts.values()) == 60
    assert min(counts.values()) > 0
    assert written == ", ".join(f"{n} {split}" for split, n in counts.items()) + (
        " conversations; 1 with fewer than two turns left out"
    )
    assert load_records(str(tmp_path), "test")[0].turns == ["Hello 🙂", "Good morning ."]
