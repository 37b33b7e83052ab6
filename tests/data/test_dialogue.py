"""Rendering to a prompt and back, and what goes first when a prompt is too long."""

import copy
import json
import pickle
from dataclasses import replace

import pytest

from rlhf_dialog.data.dialogue import (
    Dialogue,
    Turn,
    cut_at_separator,
    fit_newest,
    remove_marks,
    render_prompt,
)


def letters(text):
    return [ord(letter) for letter in text]


@pytest.mark.parametrize(
    ("text", "mark", "left"),
    [
        ("a  b ", "<EOU>", "a  b "),
        ("a <EOU> b", "<EOU>", "a b"),
        ("<EOU>a<EOU><EOU>b  c<EOU>", "<EOU>", "a b c"),
        ("<E<EOU>OU>", "<EOU>", "<E OU>"),
        ("a\nb", "\n", "a b"),
        ("xx yy yy", "x yy", ""),
        ("<EOU>", "<EOU>", ""),
        ("a b", " ", "a b"),
    ],
)
def test_a_mark_becomes_a_space(text, mark, left):
    assert remove_marks(text, [mark]) == left


def test_cut_at_separator():
    cuts = {" Yes . <EOU> Why ? <EOU>": "Yes .", " Yes .": "Yes .", " <EOU> a": "", "a<EOU>b": "a", "a <EO": "a <EO"}
    assert {text: cut_at_separator(text, "<EOU>") for text in cuts} == cuts


@pytest.mark.parametrize(
    ("max_length", "text"),
    [(16, "aaa | bbb | cc |"), (15, "bbb | cc |"), (10, "bbb | cc |"), (9, "cc |"), (4, "cc |"), (3, "c |"), (1, "|")],
)
def test_fit_newest_by_hand(max_length, text):
    assert fit_newest(["aaa", "bbb", "cc"], lambda kept: letters(render_prompt(kept, "|")), max_length) == letters(text)


# -- what is said after the prompt

TABLE = Dialogue(
    prompt_turns=["Do you have a table for two ?", "Yes . Would you like to sit outside ?"],
    response="Inside , please .",
    reference="No , inside please . It is cold .",
    act=3,
    meta={"split": "train", "index": 7, "dialogue": 2, "group": 0},
)


def test_the_filled_in_example_of_a_dialogue():
    assert TABLE.turns == [Turn("policy", "Inside , please .")]
    longer = TABLE.with_user_turn("Smoking or not ?").with_reply("Not , please .").with_user_turn("This way .")
    assert longer.response == "Not , please ."
    assert longer.turns == [
        Turn("policy", "Inside , please ."),
        Turn("user", "Smoking or not ?"),
        Turn("policy", "Not , please ."),
        Turn("user", "This way ."),
    ]
    kept = ("prompt_turns", "reference", "act", "meta", "references")
    assert all(getattr(longer, name) == getattr(TABLE, name) for name in kept)
    assert TABLE.turns == [Turn("policy", "Inside , please .")]  # the shorter one is what it was


def test_positions_of_the_arguments_are_what_they_were():
    dialogue = Dialogue(["Hi ."], "Yes .", "No .", 2, True, {"n": 1})
    names = ("prompt_turns", "response", "reference", "act", "truncated", "meta")
    assert [getattr(dialogue, name) for name in names] == [["Hi ."], "Yes .", "No .", 2, True, {"n": 1}]


@pytest.mark.parametrize("text", ["Outside .", ""])
def test_another_response_takes_the_place_of_the_last_one(text):
    longer = TABLE.with_user_turn("Smoking ?").with_reply("No .").with_user_turn("Good .")
    changed = replace(longer, response=text)
    assert (changed.response, [turn.text for turn in changed.turns]) == (
        text,
        ["Inside , please .", "Smoking ?", text, "Good ."],
    )
    assert replace(longer, response="No .") == longer != changed


def test_an_empty_reply_is_a_turn_and_a_reply_that_is_still_to_come_is_none():
    asked, empty = Dialogue(["Hi ."]), [Turn("policy", "")]
    assert asked.with_reply("").turns == Dialogue(["Hi ."], "").turns == replace(asked, response="").turns == empty
    for same in (asked, replace(asked, act=1), copy.deepcopy(asked), pickle.loads(pickle.dumps(asked))):
        assert (same.turns, same.response) == ([], "")
    assert json.dumps(asked.response) == '""'
    assert [turn.text for turn in asked.with_reply("").with_reply("Yes .").turns] == ["", "Yes ."]
    longer = asked.with_reply("").with_user_turn("Well ?").with_reply("")
    assert longer.turns == [Turn("policy", ""), Turn("user", "Well ?"), Turn("policy", "")]


def test_a_dialogue_that_was_cut_once_remains_truncated():
    assert TABLE.with_reply("a", truncated=True).with_user_turn("b").with_reply("c").truncated
    assert not TABLE.with_user_turn("b").with_reply("c").truncated
