import json
import zlib

import numpy as np
import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.action_list_world import (
    ActionList,
    ActionListWorld,
    StateFactory,
    StateFunction,
    last_turns,
    read_actions,
    split_words,
)
from tests.parts.persons import typing

ACTIONS = ActionList(
    [
        {"name": "hello", "sentence": "Hello .", "first": True},
        {"name": "again", "sentence": "Pardon ?"},
        {"name": "bye", "sentence": "Goodbye .", "words": ["bye"], "ends": True},
    ],
    "list",
)


def led(lines, actions, max_turns=9, each_answer=True):
    """The masks and the steps of a dialogue in which the system takes these actions, and what was shown."""
    person, shown = typing(lines, each_answer=each_answer, rewards=(-1.0, 1.0))
    environment = ActionListWorld(ACTIONS, person, StateFunction("last_turns", {"size": 32}), max_turns)
    _, info = environment.reset(seed=0, options={"dialogue": 0})
    steps = [environment.step(ACTIONS.names.index(action)) for action in actions]
    return [one["action_mask"].tolist() for one in (info, *(step[4] for step in steps))], steps, shown


def test_a_dialogue_whose_answers_are_rewarded():
    masks, steps, shown = led(["hi", "1", "what?", "", "bye then", "-0.5"], ["hello", "again", "bye"])
    assert masks[:3] == [[True, True, False], [False, True, False], [False, True, True]]
    assert [step[1:4] for step in steps] == [(1.0, False, False), (0.0, False, False), (-0.5, True, False)]
    info = steps[-1][4]
    assert (info["rewards"], info["left"], info["success"]) == ([1.0, None, -0.5], False, True)
    assert info["turns"] == [("", "hi"), ("hello", "what?"), ("again", "bye then"), ("bye", "")]
    assert shown[:2] == ["> You: ", "> System: Hello ."]
    assert "> System: Goodbye ." in shown


def test_ends_by_the_person_the_limit_and_the_day_and_one_reward_for_the_whole_dialogue():
    _, steps, _ = led(["hi", "1", "/end"], ["hello"])
    assert steps[0][1:4] == (1.0, True, False)
    _, steps, _ = led(["hi", "1", "and?", "-1", "so?"], ["hello", "again"], max_turns=2)
    assert [step[2:4] for step in steps] == [(False, False), (False, True)]
    assert not steps[1][4]["left"]
    _, steps, _ = led(["hi", "1"], ["hello"])
    assert (steps[0][3], steps[0][4]["left"], steps[0][4]["rewards"]) == (True, True, [1.0])
    _, steps, _ = led(["hi", "1", "bye"], ["hello", "bye"])  # the day ends where the last answer would be rewarded
    assert (steps[1][2:4], steps[1][4]["left"], steps[1][4]["rewards"]) == ((False, True), True, [1.0, None])
    _, steps, _ = led([], ["hello"])
    assert (steps[0][1], steps[0][3], steps[0][4]["rewards"], steps[0][4]["success"]) == (0.0, True, [], False)
    _, steps, _ = led(["hi", "/reward 0.5", "bye", "1"], ["hello", "bye"], each_answer=False)
    assert [step[1] for step in steps] == [0.5, 1.0]
    assert steps[1][4]["rewards"] == [0.5, None, 1.0]


FREE = {"name": "again", "sentence": "Pardon ?"}


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
    ask, x = {"name": "ask", "sentence": "Which one ?"}, {"name": "x", "sentence": "X .", **condition}
    assert ActionList([FREE, ask, x], "list").mask(taken, heard)[2] is is_allowed


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({}, "list: "),
        ([], "list: "),
        ([FREE, FREE], "'again'"),
        ([{"name": "a"}], "action 1: sentence"),
        ([FREE | {"say": "x"}], "action 1: say"),
        ([FREE | {"first": "yes"}], "action 1: first"),
        ([FREE | {"after": ["agian"]}], "'agian'; did you mean 'again'"),
        ([FREE | {"first": True}], "every action has a condition"),
        ([FREE, {"name": "b", "sentence": "B", "words": ["bye", "?!"]}], "action 'b': words: '.!'"),
        ([7], "action 1"),
    ],
)
def test_what_cannot_be_used(raw, said):
    with pytest.raises(UserError, match=said):
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


TURNS = [("", "Hello there"), ("ask", "Blue, blue and red")]


def place(name, size):
    return zlib.crc32(name.encode()) % size


def test_a_state_by_hand_and_of_a_dialogue_that_has_just_begun():
    size = 10007
    vector = np.zeros(size)
    for word, number in (("blue", 2), ("and", 1), ("red", 1)):
        vector[place(word, size)] += number / 6**0.5
    for word in ("before hello", "before there"):
        vector[place(word, size)] += 0.5 / 2**0.5
    vector[place("action ask", size)] += 0.25
    assert np.allclose(last_turns(TURNS, size, before=0.5, action=0.25), vector)
    first = StateFunction("last_turns", {"size": 64})
    assert first.size == 64
    assert np.count_nonzero(first([])) == 1  # that there was no action yet
    assert (first([("", "a"), ("ask", "b"), *TURNS]) == first([("", "x"), ("ask", "y"), *TURNS])).all()
    assert first(TURNS).dtype == np.float32


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(StateFactory, "classes", dict(StateFactory.classes))
    StateFactory.register("length", lambda turns, unit=1.0: [len(turns) * unit, 1.0])
    StateFactory.register("ragged", lambda turns: [1.0] * (1 + len(turns)))
    StateFactory.register("endless", lambda turns: [1e400])
    StateFactory.register("flat", lambda turns: 3.0)
    StateFactory.register("raises", lambda turns: turns[0])
    StateFactory.register("newest_first", lambda turns: [float(turns.reverse() is None)])


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("lenght", {}, "'lenght'; did you mean 'length'"),
        ("length", {"units": 1}, "wrong arguments for length"),
        ("endless", {}, r"endless: returned \[inf\]"),
        ("raises", {}, "raises: raised IndexError"),
        ("flat", {}, "flat: returned "),
    ],
)
def test_a_state_that_cannot_be_used(own, name, args, said):
    with pytest.raises(UserError, match=f"domain.state:? {said}|domain.state: .*{said}"):
        StateFunction(name, args)


def test_a_state_keeps_its_size_and_leaves_the_turns_as_they_are(own):
    with pytest.raises(UserError, match=r"ragged: returned .*1 finite numbers"):
        StateFunction("ragged", {})(TURNS)
    turns, state = list(TURNS), StateFunction("length", {"unit": 2.0})
    assert (state.size, state(TURNS).tolist()) == (2, [4.0, 1.0])
    StateFunction("newest_first", {})(turns)
    assert turns == TURNS
