import json
from itertools import pairwise

import pytest

from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.task_oriented.commands.write_restaurant import WriteRestaurantOptions, main
from rlhf_dialog.task_oriented.world.goal_oriented import LINE_LENGTH


def test_each_reply_is_a_row_and_a_seed_gives_the_same_dialogues(tmp_path, capsys):
    for name in ("a", "b"):
        assert main(["--output", str(tmp_path / name), "--dialogues", "10", "--lessons", "0"]) == 0
    assert "a/train.jsonl: " in capsys.readouterr().out
    for split, count in (("train", 10), ("validation", 1)):
        text = (tmp_path / "a" / f"{split}.jsonl").read_text()
        assert text == (tmp_path / "b" / f"{split}.jsonl").read_text()
        rows = [json.loads(line) for line in text.splitlines()]
        assert len({row["dialogue"] for row in rows}) == count
        for before, row in pairwise(rows):
            if row["dialogue"] == before["dialogue"]:
                assert row["prompt"][:-1] == [*before["prompt"], before["reference"]]
            assert "\n[db] " in row["prompt"][-1]
    assert len(PromptRules(context_size=60).load(str(tmp_path / "a"), "train")) > 20
    assert WriteRestaurantOptions.line_length == LINE_LENGTH


def test_lessons_are_replies_that_give_values_of_the_line(tmp_path):
    assert main(["--output", str(tmp_path / "a"), "--dialogues", "2", "--lessons", "3"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "a" / "train.jsonl").read_text().splitlines()]
    taught = [row for row in rows if row["dialogue"] >= 2]
    assert len({row["dialogue"] for row in taught}) == 3
    assert all(row["reference"].startswith(("How about the", "I am sorry")) for row in taught)
    assert {row["dialogue"] for row in rows} - {row["dialogue"] for row in taught} == {0, 1}


@pytest.mark.parametrize(
    "words", [["--dialogues", "0"], ["--lessons", "-1"], ["--domain", "nowhere"], ["--seed", "-1"]]
)
def test_what_cannot_be_written_is_refused(tmp_path, capsys, words):
    assert main(["--output", str(tmp_path / "a"), *words]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "a").exists()
