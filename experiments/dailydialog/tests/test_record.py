"""What decides a stage is kept: the same is done, something else is refused with what differs."""

import json

import pytest

from experiments.dailydialog import record
from rlhf_dialog.errors import UserError

DECIDES = {"data": "abc", "settings": {"keys": {"epochs": 2, "seed": 0}}, "versions": {"torch": "2.13"}}


def test_a_stage_is_done_when_it_has_ended_with_the_same(tmp_path):
    folder = tmp_path / "sft"
    assert not record.begin(folder, DECIDES)
    assert not record.begin(folder, DECIDES)  # it was stopped, and goes on
    record.spend(folder, 12.5)
    record.end(folder)
    assert record.begin(folder, DECIDES)
    assert (record.done(folder)["seconds"], record.spent(folder)) == (12.5, 12.5)


@pytest.mark.parametrize("ended", [True, False])
def test_something_else_is_refused_with_what_differs(tmp_path, ended):
    folder = tmp_path / "sft"
    record.begin(folder, DECIDES)
    if ended:
        record.end(folder)
    changed = {**DECIDES, "settings": {"keys": {"epochs": 3, "seed": 0}}}
    with pytest.raises(UserError, match=r"settings\.keys\.epochs was 2, is 3\. .*--again sft"):
        record.begin(folder, changed)


def test_a_stage_that_is_not_done_is_named(tmp_path):
    record.begin(tmp_path / "sft", DECIDES)
    with pytest.raises(UserError, match="the stage sft is not done"):
        record.done(tmp_path / "sft")


def test_a_damaged_file_says_how_to_begin_again(tmp_path):
    record.begin(tmp_path / "sft", DECIDES)
    (tmp_path / "sft" / record.BEGUN).write_text(json.dumps({"hash": 3}))
    with pytest.raises(UserError, match="--again sft"):
        record.begin(tmp_path / "sft", DECIDES)


def test_a_fingerprint_sees_names_and_contents(tmp_path):
    prints = set()
    for name, text in (("a", "1"), ("a", "2"), ("b", "2")):
        folder = tmp_path / f"{name}{text}"
        folder.mkdir()
        (folder / name).write_text(text)
        prints.add(record.fingerprint_of(folder))
        assert record.fingerprint_of(folder) in prints
    assert len(prints) == 3
