"""Pairs of every form that the documentation shows, every row that is refused, and the split by prompt."""

import json
import os
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_dialog.data.preferences import Preference, load_pairs, split_by_prompt
from rlhf_dialog.errors import MissingSplit, UserError
from tests.parts.data_files import assistant, csv_bytes, jsonl_bytes, user, write_split
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
    assert [*map(list, split_by_prompt(pairs, 0.1, seed=3))] == [list(training), list(held)]
    assert any(list(split_by_prompt(pairs, 0.1, seed=seed)[1]) != list(held) for seed in (4, 5, 6))
    assert [len(some) for some in split_by_prompt(pairs[:2], 0.9, 0)] == [1, 1]
    with pytest.raises(UserError, match="2 pairs have 1 prompt"):
        split_by_prompt(pairs[:41:20][:2], 0.5, 0)


def test_the_prompts_that_are_held_out_are_drawn_in_the_order_of_the_data(tmp_path):
    rows = [{"prompt": f"{99 - i // 2}", "chosen": f"yes {i}", "rejected": f"no {i}"} for i in range(60)]
    held = split_by_prompt(load_pairs(write_pairs(tmp_path / "a.jsonl", rows), "train"), 0.2, seed=3)[1]
    prompts = random.Random(3).sample([f"{99 - i}" for i in range(30)], 6)
    assert [pair.prompt for pair in held] == sorted(prompts * 2, reverse=True)


def write_table(folder, kind, rows):
    path = folder / f"pairs.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    else:
        path.write_bytes(
            {"jsonl": jsonl_bytes, "json": lambda some: json.dumps(some).encode(), "csv": csv_bytes}[kind](rows)
        )
    return path


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_pairs_that_are_drawn_are_those_of_the_data_until_the_file_changes(tmp_path, kind):
    sides = [(f"x{i}", f"y{i}") for i in range(30)]
    rows = [{"prompt": f"p{i % 9}", "a": x, "b": y, "winner": i % 2} for i, (x, y) in enumerate(sides)]
    rows[4]["b"] = rows[4]["a"]  # a bad row
    path, expected = write_table(tmp_path, kind, rows), [*enumerate(sides)]
    del expected[4]
    columns, preference = {"chosen": "a", "rejected": "b"}, Preference("winner", 0)
    pairs = load_pairs(str(path), "train", columns, preference=preference)
    wanted = [([f"p{i % 9}"], *(two if i % 2 == 0 else two[::-1])) for i, two in expected]
    order = random.Random(0).sample(range(29), 29)
    for found in (list(pairs), {i: pairs[i] for i in order}):
        shown = [(found[i].chosen.prompt_turns, found[i].chosen.response, found[i].rejected.response) for i in order]
        assert shown == [wanted[i] for i in order]
    kept = pairs.select(np.arange(29) % 3 == 1)
    assert (
        [pair.chosen.response for pair in kept]
        == [one[1] for one in wanted[1::3]]
        == [kept[i].chosen.response for i in range(10)]
    )
    assert kept.keys.itemsize + kept.prompts.itemsize == 16
    if kind in ("jsonl", "parquet"):  # the others are in memory
        os.utime(path, ns=(0, 0))
        with pytest.raises(UserError, match=f"{path.name}: has changed"):
            pairs[3]


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
    assert "not read: 'score_chosen' (1 rows), 'messages' (1 rows), 'tone' (1 rows)" in caplog.text
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


# -- what says which side is better

BOTH = {"chosen": "response_0", "rejected": "response_1"}


def two_sides(values, column="better_response_id"):
    return [
        {"prompt": f"p {i}", "response_0": f"a {i}", "response_1": f"b {i}", column: x} for i, x in enumerate(values)
    ]


def load_two(folder, rows, preference="auto", columns=BOTH):
    path = write_pairs(folder / "pairs.jsonl", rows)
    pairs = load_pairs(path, "train", columns, preference=preference)
    return [(pair.chosen.response, pair.rejected.response) for pair in pairs]


@pytest.mark.parametrize(
    ("values", "rule", "first_is_better"),
    [
        ([0, 1, 1], {"chosen_is": 0}, [True, False, False]),
        (["0", "1", "0"], {"chosen_is": 0}, [True, False, True]),
        ([True, False, None], {"chosen_is": True}, [True, False, None]),
        ([1, 0, 1], {"chosen_is": "1"}, [True, False, True]),
        (["model_a", "model_b", "tie (bothbad)"], {"chosen_is": "model_a"}, [True, False, None]),
        (["A", "b", "Tie"], {"chosen_is": "a"}, [True, False, None]),
        ([-3, 1, 0], {"above": 0}, [False, True, None]),
        (["-3", "1.5", ""], {"above": 0}, [False, True, None]),
        ([4, 3.5, 2], {"above": 3}, [True, True, False]),
    ],
)
def test_a_column_says_which_side_is_better(tmp_path, caplog, values, rule, first_is_better):
    sides = {True: lambda i: (f"a {i}", f"b {i}"), False: lambda i: (f"b {i}", f"a {i}")}
    expected = [sides[first](i) for i, first in enumerate(first_is_better) if first is not None]
    assert load_two(tmp_path, two_sides(values), Preference("better_response_id", **rule)) == expected
    ties = first_is_better.count(None)
    assert ("1 of 3 rows have a tie in 'better_response_id'" in caplog.text) is (ties == 1)
    assert "not read" not in caplog.text


def test_a_preference_also_orders_the_sides_of_usual_names(tmp_path):
    rows = [ROW | {"winner": "left"}, ROW | {"winner": "right"}]
    assert load_two(tmp_path, rows, Preference("winner", "left"), {}) == [(GOOD, BAD), (BAD, GOOD)]


@pytest.mark.parametrize(
    ("values", "preference", "words"),
    [
        (
            [0, 1],
            Preference("better_respnse_id", 0),
            ["preference.column", "no column 'better_respnse_id'", "did you mean 'better_response_id'"],
        ),
        ([0, 1], Preference("better_response_id", 2), ["preference.chosen_is", "found 2", "holds 0, 1"]),
        ([-2, 0, 2], Preference("better_response_id", 2), ["chosen_is", "holds -2, 0, 2", "above: NUMBER"]),
        (["a", "b"], Preference("better_response_id", above=0), ["line 1", "holds 'a'", "preference.above"]),
    ],
)
def test_a_preference_that_cannot_be_read_is_one_error(tmp_path, values, preference, words):
    with pytest.raises(UserError) as caught:
        load_two(tmp_path, two_sides(values), preference)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    "column",
    ["better_response_id", "safer_response_id", "winner", "preference", "label", "labels", "overall_preference"],
)
def test_two_named_sides_and_a_column_that_may_decide_need_a_word(tmp_path, caplog, column):
    rows = two_sides([0, 1], column)
    with pytest.raises(UserError) as caught:
        load_two(tmp_path, rows)
    assert all(
        word in str(caught.value) for word in (f"preference: {{column: {column}", "preference: null", "response_0")
    )
    assert load_two(tmp_path, rows, None) == [("a 0", "b 0"), ("a 1", "b 1")]
    assert f"not read: '{column}' (2 rows)" in caplog.text
    assert len(load_two(tmp_path, two_sides([1, 1], column))) == 2
    natural = [ROW | {column: value} for value in (0, 1)]
    assert len(load_two(tmp_path, natural, columns={})) == 2
    assert len(load_two(tmp_path, two_sides([0, 1], "helpful"))) == 2


@pytest.mark.parametrize(
    ("low", "high"),
    [("score_chosen", "score_rejected"), ("chosen-rating", "rejected-rating"), ("chosen_reward", "rejected_reward")],
)
def test_scores_against_the_sides_are_a_bad_row(tmp_path, caplog, low, high):
    bad, good, same = ({low: a, high: b} for a, b in ((2, "3.5"), (4, 3), (3, 3)))
    rows = [ROW | one for one in (bad, *[good] * 8, same, {low: None, high: 3})]
    assert len(load_two(tmp_path, rows, columns={})) == 10
    assert f"'{low}' 2 is below '{high}' 3.5" in caplog.text
    with pytest.raises(UserError, match="2 of 3 rows cannot be used"):
        load_two(tmp_path, [ROW | one for one in (bad, bad, good)], columns={})


def test_pairs_of_public_data_sets(tmp_path):
    """As the cards of the data sets say: SHP's label 1 prefers A, HelpSteer3's scores above 0 the second response."""
    shp = [
        {"history": "Q ?", "human_ref_A": "a", "human_ref_B": "b", "labels": x, "score_A": 3, "score_B": 1}
        for x in (1, 0)
    ]
    columns = {"prompt": "history", "chosen": "human_ref_A", "rejected": "human_ref_B"}
    assert load_two(tmp_path, shp, Preference("labels", 1), columns) == [("a", "b"), ("b", "a")]
    steer = [
        {"context": [user("Q ?")], "response1": "a", "response2": "b", "overall_preference": x} for x in (-2, 0, 3)
    ]
    columns = {"prompt": "context", "chosen": "response2", "rejected": "response1"}
    assert load_two(tmp_path, steer, Preference("overall_preference", above=0), columns) == [("a", "b"), ("b", "a")]
    sides = {"conversation_a": TWO[0], "conversation_b": TWO[1]}
    arena = [sides | {"winner": x} for x in ("model_a", "model_b", "tie", "tie (bothbad)")]
    columns = {"chosen": "conversation_a", "rejected": "conversation_b"}
    assert load_two(tmp_path, arena, Preference("winner", "model_a"), columns) == [(GOOD, BAD), (BAD, GOOD)]
