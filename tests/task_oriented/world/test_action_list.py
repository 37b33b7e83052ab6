"""A list of actions: when each is allowed, and what cannot be used."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.action_list import ActionList, read_actions, split_words
from tests.parts.processes import ROOT

FREE = {"name": "again", "sentence": "Pardon ?"}


def allowed(condition, taken, heard=""):
    actions = ActionList(
        [FREE, {"name": "ask", "sentence": "Which one ?"}, {"name": "x", "sentence": "X .", **condition}], "list"
    )
    return actions.mask(taken, heard)[2]


@pytest.mark.parametrize(
    ("condition", "taken", "heard", "is_allowed"),
    [
        ({}, [], "", True),
        ({"first": True}, [], "", True),
        ({"first": True}, ["ask"], "", False),
        ({"first": False}, [], "", False),
        ({"first": False}, ["ask"], "", True),
        ({"after": ["ask"]}, ["again"], "", False),
        ({"after": ["ask", "again"]}, ["ask", "x"], "", True),
        ({"not_after": ["x"]}, ["ask", "x", "ask"], "", False),
        ({"not_after": ["x"]}, ["ask"], "", True),
        ({"words": ["bye", "thank you"]}, [], "OK, thank  you!", True),
        ({"words": ["bye", "thank you"]}, [], "thank god you know", False),
        ({"words": ["bye"]}, [], "goodbye", False),
        ({"words": ["再见", "さようなら"]}, [], "好的再见了！", True),
        ({"words": ["再见"]}, [], "再说，见", False),
        ({"words": ["हाँ"]}, [], "हाँ, ठीक है", True),
        ({"words": ["café"]}, [], "un cafe\u0301 ?", True),
        ({"first": False, "words": ["bye"]}, [], "bye", False),
    ],
)
def test_an_action_is_allowed_where_its_conditions_hold(condition, taken, heard, is_allowed):
    assert allowed(condition, taken, heard) is is_allowed


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({}, "list: is not a list of actions"),
        ([], "list: is not a list of actions"),
        ([FREE, FREE], "two actions have the name 'again'"),
        ([{"name": "a"}], "list, action 1: sentence: Field required"),
        ([FREE | {"say": "x"}], "action 1: unknown key 'say'; known: name, sentence"),
        ([FREE | {"aftr": []}], "unknown key 'aftr'; did you mean 'after'"),
        ([FREE | {"sentence": ""}], "sentence: String should have at least 1 character"),
        ([FREE | {"first": "yes"}], "first: Input should be a valid boolean"),
        ([FREE | {"after": ["agian"]}], "action 'again': there is no action 'agian'; did you mean 'again'"),
        ([FREE | {"first": True}], "every action has a condition"),
        (
            [FREE, {"name": "b", "sentence": "B", "words": ["bye", "?!"]}],
            "action 'b': words: '?!' has no letter or digit",
        ),
        ([7], "list, action 1: it: Input should be a valid dictionary"),
    ],
)
def test_what_cannot_be_used(raw, said):
    with pytest.raises(UserError, match=said.replace("?", r"\?")):
        ActionList(raw, "list")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't, rock'n'roll 'tis a_b x''y 3.5!", ["don't", "rock'n'roll", "tis", "a_b", "x", "y", "3", "5"]),
        ("Größe, ΜΙΚΡΌ", ["größe", "μικρό"]),
        ("किताब की कीमत", ["किताब", "की", "कीमत"]),
        ("שָׁלוֹם, สวัสดี", ["שָׁלוֹם", "สวัสดี"]),
        ("本はiPhoneの隣", ["本", "は", "iphone", "の", "隣"]),
        ("책이 있어요?", ["책이", "있어요"]),
        ("?!・。", []),
    ],
)
def test_words_keep_their_vowel_signs_and_each_chinese_character_is_one(text, words):
    assert split_words(text) == words


def test_the_names_make_the_hash(tmp_path):
    one = ActionList([FREE, {"name": "b", "sentence": "B"}], "list")
    assert one.hash == ActionList([FREE, {"name": "b", "sentence": "Bee", "first": True}], "list").hash
    assert one.hash != ActionList([{"name": "b", "sentence": "B"}, FREE], "list").hash
    path = tmp_path / "actions.json"
    path.write_text(json.dumps([FREE]), encoding="utf-8")
    assert read_actions(path).names == ["again"]
    path.write_text("[", encoding="utf-8")
    with pytest.raises(UserError, match=r"actions\.json: cannot be read as JSON"):
        read_actions(path)


def test_the_list_that_ships_can_be_used():
    actions = read_actions(ROOT / "configs" / "actions.json")
    assert len(actions.names) >= 10
    assert actions.actions[actions.names.index("goodbye")].ends
