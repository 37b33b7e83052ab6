"""The notation of made-up lines, on lines written here."""

import random
import re

import pytest

from rlhf_dialog.data.synthetic.notation import alternatives, expand, expression, normal

WORDS = {"fruit": ["an apple", "(two|three) pears"], "day": ["today", "on Monday"]}


def test_a_list_is_split_outside_of_brackets():
    assert alternatives("a (b|c (d|e)) | f [g|h] | i") == ["a (b|c (d|e))", "f [g|h]", "i"]


def test_every_wording_comes_up_and_no_other():
    found = {expand("(I|we) eat [big] <fruit>", WORDS, random.Random(seed)) for seed in range(300)}
    fruits = ("an apple", "two pears", "three pears")
    assert {" ".join(text.split()) for text in found} == {
        " ".join(f"{who} eat {size} {fruit}".split()) for who in ("I", "we") for size in ("big", "") for fruit in fruits
    }


@pytest.mark.parametrize(
    ("text", "wanted"), [("I'm an  Ox, (so)!", " i'm a ox so"), ("Check-out?", " check out"), (" . ", "")]
)
def test_normal_text(text, wanted):
    assert normal(text) == wanted


def test_a_line_reads_its_wordings_and_names_its_slots():
    pattern = re.compile(expression("(I|we) eat [big] <fruit> {day}.", WORDS))
    assert pattern.fullmatch(normal("We eat big three pears, on Monday!")).group("day") == " on monday"
    assert pattern.fullmatch(normal("I eat an apple today"))
    for other in ("they eat an apple today", "I eat apple today", "I eat an apple", "I eat a bigapple today"):
        assert not pattern.fullmatch(normal(other)), other
