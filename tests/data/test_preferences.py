"""Pairs of every form that the documentation shows, every row that is refused, and the split by prompt."""

import json

import pytest

from rlhf_dialog.data.preferences import load_pairs, split_by_prompt
from rlhf_dialog.errors import MissingSplit, UserError
from tests.parts.data_files import assistant, csv_bytes, user, write_split
from tests.parts.scalars import write_pairs

GOOD, BAD = "Two streets .", "No ."


def test_csv_and_the_other_split(tmp_path):
    (tmp_path / "train.csv").write_text('prompt,chosen,rejected,margin\n"[""a"", ""b""]",c,d,1.5\n', encoding="utf-8")
    (pair,) = load_pairs(str(tmp_path), "train")
    assert (pair.chosen.prompt_turns, pair.margin) == (["a", "b"], 1.5)
    with pytest.raises(UserError, match=r"line 2: has no 'margin', but other rows have one"):
        load_pairs(write_pairs(tmp_path / "some.jsonl", [ROW | {"margin": 1}, ROW]), "train")
    with pytest.raises(MissingSplit):
        load_pairs(str(tmp_path), "validation")


ROW = {"prompt": "Is it far ?", "chosen": GOOD, "rejected": BAD}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ROW | {"rejected": f"{GOOD} "}, ["'chosen' and 'rejected' are the same"]),
        (ROW | {"chosen": " "}, ["'chosen' holds an empty text"]),
        (ROW | {"chosen": None}, ["'chosen' holds null"]),
        (ROW | {"rejected": 3}, ["'rejected' holds a number"]),
        ({"prompt": "a", "chosen": "b"}, ["no column 'rejected'", "found 'prompt', 'chosen'"]),
        ({"prompt": "a", "choosen": "b", "rejected": "c"}, ["no column 'chosen'", "did you mean 'chosen'?"]),
        (ROW | {"prompt": 5}, ["'prompt' holds a number"]),
        (ROW | {"prompt": ["a", ""]}, ["turn 2 of 'prompt' holds an empty text"]),
        (ROW | {"chosen": []}, ["'chosen' holds no message"]),
        (ROW | {"chosen": [assistant("a"), user("b")]}, ["'chosen' ends with a message of the user"]),
        (ROW | {"margin": "much"}, ["'margin' holds 'much'"]),
        (ROW | {"margin": float("nan"), "chosen": [{"type": "x"}]}, ["turn 1 is an object without a text"]),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, row, words):
    path = write_pairs(tmp_path / "pairs.jsonl", [ROW, row])
    with pytest.raises(UserError) as error:
        load_pairs(path, "train")
    assert "pairs.jsonl, line 2: " in str(error.value)
    assert all(word in str(error.value) for word in words), error.value


def test_no_prompt_is_on_both_sides_of_the_split(tmp_path):
    rows = [{"prompt": f"prompt {i % 20}", "chosen": f"yes {i}", "rejected": f"no {i}"} for i in range(60)]
    pairs = load_pairs(write_pairs(tmp_path / "a.jsonl", rows), "train")
    training, held = split_by_prompt(pairs, 0.1, seed=3)
    assert (len(training), len(held)) == (54, 6)
    assert not {pair.prompt for pair in training} & {pair.prompt for pair in held}
    assert split_by_prompt(pairs, 0.1, seed=3) == (training, held)
    assert any(split_by_prompt(pairs, 0.1, seed=seed)[1] != held for seed in (4, 5, 6))
    assert [len(some) for some in split_by_prompt(pairs[:2], 0.9, 0)] == [1, 1]
    with pytest.raises(UserError, match="2 pairs have 1 prompt"):
        split_by_prompt([pairs[0]] * 2, 0.5, 0)


def test_texts_without_a_prompt_share_one_by_their_beginning(tmp_path):
    begin = "Human: Is it far ? Assistant:"
    rows = [{"chosen": f"{begin} {i}", "rejected": f"{begin} no {i}"} for i in (1, 2)] + [
        {"chosen": "a", "rejected": "b"},
        {"chosen": "c", "rejected": "d"},
    ]
    pairs = load_pairs(write_pairs(tmp_path / "a.jsonl", rows), "train")
    assert pairs[0].prompt == pairs[1].prompt == f"{begin} "
    assert len({pair.prompt for pair in pairs}) == 3
    begin = "Guest: Is it far from here ?\n\nPorter: "  # "Ye" of both replies does not count
    rows = [
        {"chosen": f"{begin}Yes .", "rejected": f"{begin}Yet ."},
        {"chosen": f"{begin}So", "rejected": f"{begin}No"},
    ]
    pairs = load_pairs(write_pairs(tmp_path / "b.jsonl", rows), "train")
    assert pairs[0].prompt == pairs[1].prompt == "Guest: Is it far from here ?"


def test_a_short_prompt_is_not_cut_off_replies_that_begin_with_it(tmp_path):
    row = {"prompt": "No", "chosen": "Not far .", "rejected": "No ."}
    (pair,) = load_pairs(write_pairs(tmp_path / "a.jsonl", [row]), "train")
    assert (pair.chosen.response, pair.rejected.response) == ("Not far .", "No .")


def test_white_space_and_messages_do_not_make_another_prompt(tmp_path):
    prompts = ["Is it  far ?", " Is it\nfar ?", ["Is it", "far ?"], [user("Is it far ?")]]
    rows = [{"prompt": prompt, "chosen": GOOD, "rejected": BAD} for prompt in prompts]
    pairs = load_pairs(write_pairs(tmp_path / "a.jsonl", rows), "train")
    assert {pair.prompt for pair in pairs} == {"Is it far ?"}


def test_dialogues_are_not_pairs(tmp_path):
    path = write_split(tmp_path, "a __eou__ b __eou__\n")
    with pytest.raises(UserError, match=r"dialogues_train\.txt, line 1: there is no column 'chosen'"):
        load_pairs(path, "train")
    (tmp_path / "empty.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match="there are no rows"):
        load_pairs(str(tmp_path / "empty.json"), "train")


def test_messages_of_one_role_are_one_turn_and_the_system_message_is_kept(tmp_path):
    prompt = [{"role": "system", "content": "S"}, user("a"), user("b")]
    row = {"prompt": prompt, "chosen": [assistant("c"), assistant("d")], "rejected": "e"}
    (pair,) = load_pairs(write_pairs(tmp_path / "pairs.jsonl", [row]), "train")
    assert (pair.chosen.prompt_turns, pair.chosen.response, pair.chosen.system) == (["a\n\nb"], "c\n\nd", "S")
    assert (pair.rejected.prompt_turns, pair.rejected.response, pair.rejected.system) == (["a\n\nb"], "e", "S")


TWO = [user("Is it far ?"), assistant(GOOD)], [user("Is it far ?"), assistant(BAD)]
LONG = [user("Hi ."), assistant("Hello ."), *TWO[0]], [user("Hi ."), assistant("Hello ."), *TWO[1]]
HUMAN = "\n\nHuman: Hi .\n\nAssistant: Hello .\n\nHuman: Is it far ?\n\nAssistant:"


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"prompt": "Is it far ?", "chosen": GOOD, "rejected": BAD}, ["Is it far ?"]),
        ({"prompt": [" Hi . ", "Is it far ?"], "chosen": f" {GOOD} ", "rejected": BAD}, ["Hi .", "Is it far ?"]),
        ({"prompt": [user("Is it far ?")], "chosen": [assistant(GOOD)], "rejected": [assistant(BAD)]}, ["Is it far ?"]),
        ({"chosen": TWO[0], "rejected": TWO[1]}, ["Is it far ?"]),
        ({"prompt": None, "chosen": GOOD, "rejected": BAD, "source": "shop"}, []),
        ({"prompt": "Is it far ?", "chosen": TWO[0], "rejected": TWO[1]}, ["Is it far ?"]),
        ({"prompt": [user("Is it  far ?")], "chosen": TWO[0], "rejected": TWO[1]}, ["Is it far ?"]),
        ({"prompt": "Hi .", "chosen": LONG[0], "rejected": LONG[1]}, ["Hi .", "Hello .", "Is it far ?"]),
        ({"prompt": "Is it far ?", "chosen": LONG[0], "rejected": LONG[1]}, ["Hi .", "Hello .", "Is it far ?"]),
        ({"prompt": LONG[0][:3], "chosen": TWO[0], "rejected": TWO[1]}, ["Hi .", "Hello .", "Is it far ?"]),
        ({"messages": TWO[0], "chosen": GOOD, "rejected": BAD}, ["Is it far ?"]),
        ({"prompt": LONG[0][:3], "chosen": GOOD, "rejected": TWO[1]}, ["Hi .", "Hello .", "Is it far ?"]),
        ({"chosen": f"{HUMAN} {GOOD}", "rejected": f"{HUMAN} {BAD}"}, ["Hi .", "Hello .", "Is it far ?"]),
        ({"prompt": HUMAN, "chosen": f" {GOOD}", "rejected": BAD}, ["Hi .", "Hello .", "Is it far ?"]),
        ({"prompt": HUMAN, "chosen": f"{HUMAN} {GOOD}", "rejected": f"{HUMAN} {BAD}"}, ["Hi .", "Hello .", "Is it far ?"]),
        (
            {"conversations": [{"from": "human", "value": "Is it far ?"}], "chosen": {"from": "gpt", "value": GOOD}}
            | {"rejected": {"from": "gpt", "value": BAD}},
            ["Is it far ?"],
        ),
        (
            {"instruction": "Is it far ?", "input": "On foot .", "history": [["Hi .", "Hello ."]]}
            | {"chosen": GOOD, "rejected": BAD},
            ["Hi .", "Hello .", "Is it far ?\n\nOn foot ."],
        ),
        (
            {"prompt": "Is it far from the station ?"}
            | {side: f"Is it far from the station ? {text}" for side, text in (("chosen", GOOD), ("rejected", BAD))},
            ["Is it far from the station ?"],
        ),
    ],
)  # fmt: skip
def test_every_form_gives_the_prompt_once_and_two_replies(tmp_path, row, prompt):
    (pair,) = load_pairs(write_pairs(tmp_path / "pairs.jsonl", [row]), "train")
    assert (pair.chosen.prompt_turns, pair.chosen.response) == (prompt, GOOD)
    assert (pair.rejected.prompt_turns, pair.rejected.response) == (prompt, BAD)
    assert (pair.margin, pair.last_turn) == (None, "".join(prompt[-1:]))
    assert pair.where.endswith("pairs.jsonl, line 1")


def test_system_columns_are_read_and_other_columns_are_named(tmp_path, caplog):
    row = {"system": "S", "question": "a", "chosen": "b", "rejected": "c"}
    row |= {"messages": [user("d")], "tone": "dry", "score_chosen": 1}
    (pair,) = load_pairs(write_pairs(tmp_path / "pairs.jsonl", [row]), "train")
    assert (pair.chosen.system, pair.chosen.prompt_turns) == ("S", ["a"])
    assert "not read: 'messages' (1 rows), 'tone' (1 rows)" in caplog.text
    messages = [{"role": "system", "content": "S"}, user("a"), assistant("b")]
    row = {"system": "S", "prompt": messages[:2], "chosen": messages, "rejected": [*messages[:2], assistant("c")]}
    (pair,) = load_pairs(write_pairs(tmp_path / "pairs.jsonl", [row]), "train")
    assert (pair.chosen.system, pair.chosen.prompt_turns) == ("S", ["a"])


def test_a_few_bad_pairs_are_left_out_and_counted(tmp_path, caplog):
    bad = [ROW | {"rejected": f"{GOOD} "}, ROW | {"chosen": None}, ROW | {"prompt": " "}, ROW | {"chosen": []}]
    assert len(load_pairs(write_pairs(tmp_path / "a.jsonl", [ROW] * 36 + bad), "train")) == 36
    assert "4 of 40 rows" in caplog.text
    tool = ROW | {"prompt": [user("a"), {"role": "tool", "content": "x"}]}
    assert len(load_pairs(write_pairs(tmp_path / "c.jsonl", [ROW, tool]), "train")) == 1
    assert "1 of 2 rows have tool messages" in caplog.text
    with pytest.raises(UserError, match="4 of 39 rows cannot be used"):
        load_pairs(write_pairs(tmp_path / "b.jsonl", [ROW] * 35 + bad), "train")


def test_lists_of_messages_in_cells_of_a_csv_file(tmp_path):
    row = {"chosen": TWO[0], "rejected": TWO[1]}
    for write in (json.dumps, str):
        (tmp_path / "a.csv").write_bytes(csv_bytes([row], write))
        (pair,) = load_pairs(str(tmp_path / "a.csv"), "train")
        assert (pair.chosen.prompt_turns, pair.rejected.response) == (["Is it far ?"], BAD)
    (tmp_path / "a.csv").write_bytes(csv_bytes([{"prompt": "a", "chosen": "[laughs]", "rejected": "[1, 2]"}]))
    (pair,) = load_pairs(str(tmp_path / "a.csv"), "train")
    assert (pair.chosen.response, pair.rejected.response) == ("[laughs]", "[1, 2]")
