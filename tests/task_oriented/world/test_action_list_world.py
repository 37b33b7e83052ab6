"""A list of actions and its world."""

import json
import zlib

import numpy as np
import pytest

from rlhf_dialog.config.loading import find_config
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.action_list_world import (
    ActionList,
    ActionListWorld,
    AnswerTest,
    StateFactory,
    StateFunction,
    last_turns,
    read_actions,
    read_answers,
    split_words,
)
from rlhf_dialog.task_oriented.world.users.teacher import PersonTurn
from tests.parts.persons import typing
from tests.parts.processes import ROOT

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


def test_ends_by_the_person_the_limit_and_the_day():
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
    assert (steps[0][1], steps[0][3], steps[0][4]["rewards"]) == (0.0, True, [])


def test_one_reward_for_the_whole_dialogue():
    _, steps, _ = led(["hi", "/reward 0.5", "bye", "1"], ["hello", "bye"], each_answer=False)
    assert [step[1] for step in steps] == [0.5, 1.0]
    assert steps[1][4]["rewards"] == [0.5, None, 1.0]


LIST = ActionList(
    [
        {"name": "hello", "sentence": "Hello .", "first": True},
        {"name": "title", "sentence": "Which book ?", "not_after": ["title"]},
        {"name": "hours", "sentence": "From nine .", "first": False},
        {"name": "again", "sentence": "Pardon ?"},
        {"name": "bye", "sentence": "Goodbye .", "words": ["bye", "thanks"], "ends": True},
    ],
    "list",
)
ANSWERS = {"hi": "hello", "a book": "title", "when ?": "hours", "thanks": "bye"}


def asked(choose, dialogue=0, turns=5, answers=ANSWERS):
    """The steps of a dialogue whose actions are `choose(line)`, and the observations."""
    answer_test = AnswerTest(LIST, answers, StateFunction("last_turns", {"size": 32}), turns)
    first, _ = answer_test.reset(seed=3, options={"dialogue": dialogue})
    seen, steps = [first], []
    while not steps or not steps[-1][2]:
        steps.append(answer_test.step(LIST.names.index(choose(answer_test.turns[-1][1]))))
        seen.append(steps[-1][0])
    return steps, seen, answer_test.turns


def test_one_who_knows_everything_is_always_right():
    endings = set()
    for dialogue in range(40):
        steps, _, turns = asked(ANSWERS.get, dialogue)
        info = steps[-1][4]
        assert [step[1] for step in steps] == [1.0] * len(steps)
        assert info["right"] == len(steps) == len(info["asked"])
        assert [right for _, right in info["asked"]] == [name for name, _ in turns[1:]]
        lines = [line for line, _ in info["asked"]]
        assert "hi" not in lines[1:]  # it could not be answered
        assert lines.count("a book") <= 1
        assert lines[0] != "when ?"
        endings.add((turns[-1][0] == "bye", len(steps)))
    assert (False, 5) in endings
    assert {length for by_bye, length in endings if by_bye} >= {1, 2, 3}


def test_what_is_wrong_costs_as_much():
    steps, _, _ = asked(lambda line: "again")
    assert [step[1:4] for step in steps] == [(-1.0, False, False)] * 4 + [(-1.0, True, False)]
    assert (steps[-1][4]["right"], steps[-1][4]["success"]) == (0, False)


def test_a_dialogue_depends_on_seed_and_number_and_goes_on_while_there_is_a_line():
    assert asked(ANSWERS.get, 1)[2] == asked(ANSWERS.get, 1)[2]
    assert len({asked(ANSWERS.get, number)[2][0][1] for number in range(20)}) == 3
    steps, _, turns = asked(lambda line: "title", answers={"a book": "title"})
    assert turns == [("", "a book"), ("title", "")]
    assert steps[0][1:3] == (1.0, True)


class Script:
    """A teacher who says these lines."""

    each_answer, left = True, False

    def __init__(self, lines):
        self.lines = iter(lines)

    def begin(self, about, greeting):
        return PersonTurn(next(self.lines))

    def answer(self, sentence, last=False):
        return PersonTurn("" if last else next(self.lines), 1.0)


def test_the_policy_sees_what_it_saw_when_it_learned():
    for number in range(10):
        steps, seen, turns = asked(ANSWERS.get, number, turns=4)
        spoken = ActionListWorld(LIST, Script(line for _, line in turns), StateFunction("last_turns", {"size": 32}), 9)
        expected = [spoken.reset(seed=0, options={"dialogue": 0})]
        expected += [spoken.step(LIST.names.index(name)) for name, _ in turns[1:]]
        assert np.array_equal(seen, [one[0] for one in expected])
        for mine, theirs in zip(steps[:-1], expected[1:-1], strict=True):
            assert np.array_equal(mine[4]["action_mask"], theirs[4]["action_mask"])


def test_the_table_that_ships_fits_the_list_that_ships():
    actions = read_actions(find_config("actions.json"))
    found = read_answers(find_config("answers.json"), actions)
    assert found["are you open on Saturday"] == "hours"
    assert set(found.values()) <= set(actions.names)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ([], r"table\.json"),
        ({"hour": ["when ?"]}, "'hour'; did you mean 'hours'"),
        ({"title": "a book"}, "'title'"),
        ({"title": ["a book", " "]}, "'title'"),
        ({"title": ["a book"], "hours": ["a book"]}, "'a book' is there for 'title' and for 'hours'"),
        ({"bye": ["cheers"]}, "action 'bye': .*'cheers'"),
        ({"hours": ["when ?"]}, "no action in it is allowed as the first one of a dialogue"),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path, table, said):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(UserError, match=said):
        read_answers(path, LIST)


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
        ({}, "list: "),
        ([], "list: "),
        ([FREE, FREE], "'again'"),
        ([{"name": "a"}], "action 1: sentence"),
        ([FREE | {"say": "x"}], "action 1: say"),
        ([FREE | {"sentence": ""}], "action 1: sentence"),
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


def test_the_list_that_ships_can_be_used():
    actions = read_actions(ROOT / "configs" / "actions.json")
    assert len(actions.names) >= 10
    assert actions.actions[actions.names.index("goodbye")].ends


TURNS = [("", "Hello there"), ("ask", "Blue, blue and red")]


def place(name, size):
    return zlib.crc32(name.encode()) % size


def test_words_and_action_by_hand():
    size = 10007
    vector = np.zeros(size)
    for word, number in (("blue", 2), ("and", 1), ("red", 1)):
        vector[place(word, size)] += number / 6**0.5
    for word in ("before hello", "before there"):
        vector[place(word, size)] += 0.5 / 2**0.5
    vector[place("action ask", size)] += 0.25
    assert np.allclose(last_turns(TURNS, size, before=0.5, action=0.25), vector)


def test_a_dialogue_that_has_just_begun_and_older_turns():
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
    StateFactory.register("raises", lambda turns: turns[0])
    StateFactory.register("newest_first", lambda turns: [float(turns.reverse() is None)])


def test_a_function_of_the_users_own(own):
    state = StateFunction("length", {"unit": 2.0})
    assert (state.size, state(TURNS).tolist()) == (2, [4.0, 1.0])


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        (
            "lenght",
            {},
            "domain.state: unknown state 'lenght'; did you mean 'length'.* class of your own in a file",
        ),
        ("length", {"units": 1}, "domain.state: wrong arguments for length"),
        ("endless", {}, r"domain.state endless: returned \[inf\] for \[\]; return a list of finite numbers"),
        ("raises", {}, "domain.state raises: raised IndexError"),
    ],
)
def test_a_state_that_cannot_be_used(own, name, args, said):
    with pytest.raises(UserError, match=said):
        StateFunction(name, args)
