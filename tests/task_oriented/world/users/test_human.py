from random import Random

import pytest

from rlhf_dialog.errors import SignalExit, UserError
from rlhf_dialog.task_oriented.world.acts import Act, format_acts, parse_acts
from rlhf_dialog.task_oriented.world.goal_oriented import GoalOriented
from rlhf_dialog.task_oriented.world.goals import Goal
from rlhf_dialog.task_oriented.world.success import Evaluator
from rlhf_dialog.task_oriented.world.tracker import FocusTracker
from rlhf_dialog.task_oriented.world.users import AgendaUser
from rlhf_dialog.task_oriented.world.users.agenda import contradicts_goal, find_unconfirmed, read_system_turn
from rlhf_dialog.task_oriented.world.users.human import HumanUser, describe_goal, why_failed
from rlhf_dialog.task_oriented.world.users.parameters import DECISIONS, KINDS, read_ranges
from rlhf_dialog.task_oriented.world.users.teacher import PersonTurn
from rlhf_dialog.task_oriented.world.words import system_words
from tests.parts.persons import typing
from tests.parts.small_domain import small_domain

TEA = small_domain()
TASK = {"constraints": {"tea": "green", "area": "north"}, "requests": ["phone"]}


def person(*lines):
    """A person who types these lines, then closes the terminal; and what is shown to the person."""
    typed, shown = iter(lines), []
    return HumanUser(TEA, lambda: next(typed, None), shown.append), shown


def test_a_dialogue_with_a_person():
    user, shown = person("hi, green tea in the north please", "whats the phone number?", "Thanks, goodbye!")
    environment = GoalOriented(user, FocusTracker(TEA), Evaluator(TEA), system_words(TEA).read)
    text, _ = environment.reset(seed=0, options={"goal": TASK})
    assert shown == [
        "You are looking for a cafe: tea green, area north. Find out: name, phone number. Say goodbye when you have it."
    ]
    assert text == "hi, green tea in the north please\n[db] 2 match: name=ada, tea=green, area=north"
    heard = environment.step("How about Ada ?")[0]
    assert heard == "whats the phone number?\n[db] 2 match: name=ada, phone=11, tea=green, area=north"
    text, reward, terminated, _, info = environment.step("How about Ada ? Its phone number is 11 .")
    assert (text, reward, terminated, info["success"]) == ("Thanks, goodbye!", 19.0, True, True)


def test_a_closed_terminal_is_a_goodbye_and_a_goal_is_shown_in_words():
    user, shown = person("green")
    goal = Goal({"area": "dontcare", "tea": "green"}, {"name": None}, wanted_name="ada")
    assert user.begin(goal, None) == [Act("inform", "tea", "green")]
    assert user.answer([Act("hello")]) == [Act("bye")]
    assert user.words == "Goodbye ."
    assert "cafe: tea green, area of any kind, the name ada. Find out: name." in shown[0]
    assert "cafe: any one. Find" in describe_goal(TEA, Goal({}))


MISSING = "what was not said, or not rightly: the phone number of ada"


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        (["Pardon ?", "I am sorry , I found nothing ."], "no cafe was offered"),
        (["How about zoe ?"], "zoe is not in the data base"),
        (["How about ada ?", "How about cid ?"], "cid does not fit: area south, not north"),
        (["How about ada ? Its phone number is 22 ."], MISSING),
        (["How about ada ? Its phone number is 22 . Its phone number is 11 ."], MISSING),
        (["How about ada ? Its phone number is 11 ."], "the dialogue did not end with a goodbye"),
    ],
)
def test_a_person_is_shown_what_was_missing(replies, reason):
    user, _ = person(*["green tea in the north"] * (len(replies) + 1))
    words = system_words(TEA).read
    environment = GoalOriented(user, FocusTracker(TEA), Evaluator(TEA), words, max_turns=len(replies))
    environment.reset(seed=0, options={"goal": TASK})
    info = [environment.step(reply) for reply in replies][-1][4]
    assert info["success"] is False
    assert why_failed(TEA, info).startswith(reason)


def test_words_and_rewards_go_their_ways():
    person, shown = typing(["", "hello", "/reward 3", "//reward", "/end", "-2.5", ""])
    assert person.begin("Find tea.", "Hello .") == PersonTurn("hello")
    assert shown[:3] == ["Find tea.", "> System: Hello .", "> You: "]
    assert person.answer("Which tea ?") == PersonTurn("/reward", reward=3.0)
    assert person.answer("Which area ?") == PersonTurn(ends=True)
    assert [person.judge("the goal was reached"), person.judge("")] == [-2.5, None]
    assert "(the goal was reached)" in shown
    assert not person.left


@pytest.mark.parametrize("wrong", ["21", "-20.5", "nan", "good", "1,5", "1_0", "/end"])
def test_what_is_not_a_reward_is_asked_for_again(wrong):
    person, shown = typing([wrong, "+20", "-20"])
    assert person.judge("") == 20.0
    assert (shown[0], shown[2], len(shown)) == ("> Reward, -20 to 20 (Enter: none): ", shown[0], 3)
    assert person.judge("") == -20.0


def test_words_with_a_slash():
    person, shown = typing(["/end", "/reward 3", "/HELP", "/wuit", "hi", "/reward 4", "/reward 6", "x"])
    assert person.begin("", "") == PersonTurn("hi")
    assert shown.count("(the system has not answered yet)") == 2
    assert sum("/quit" in line and "/reward" in line for line in shown) == 2  # for /help, and for an unknown word
    assert person.answer("What ?") == PersonTurn("x", 6.0)


@pytest.mark.parametrize("end", ["/quit", "/exit", EOFError, KeyboardInterrupt, SignalExit])
def test_the_end_of_the_day(end):
    lines, (person, _) = iter(["hi", "/reward 2", end]), typing([])

    def ask(prompt):
        line = next(lines)
        if isinstance(line, str):
            return line
        raise line

    person.ask = ask
    person.begin("", "")
    assert person.answer("What ?") == PersonTurn("", 2.0)
    assert person.left
    assert person.answer("Are you there ?") == PersonTurn()  # nothing more is asked
    assert person.judge("") is None


DOMAIN = small_domain()
WISH = Goal({"tea": "green", "area": "dontcare"})


@pytest.mark.parametrize(
    ("text", "intent", "offer", "empty", "choices"),
    [
        ("inform(name=ada) inform(tea=green)", "inform", "ada", False, ()),
        ("inform(name=none) inform(tea=white)", "inform", "", True, ()),
        ("inform(name=none) except(name=ada) except(name=ben)", "inform", "", False, ("ada", "ben")),
        ("confirm(name=ada)", "confirm", "", False, ()),
        ("", "null", "", False, ()),
    ],
)
def test_what_a_turn_says_of_venues(text, intent, offer, empty, choices):
    said = read_system_turn(parse_acts(text))
    assert (said.intent, said.offer, said.empty, said.choices) == (intent, offer, empty, choices)
    assert said.slots == {act.slot for act in parse_acts(text) if act.intent != "except"}


@pytest.mark.parametrize(
    ("goal", "text", "slot", "wrong"),
    [
        (WISH, "confirm(tea=black)", "tea", True),
        (WISH, "confirm(tea=green)", "tea", False),
        (WISH, "confirm(area=north)", "area", False),  # the user does not care
        (WISH, "confirm(phone=11)", "phone", False),
        (WISH, "inform(name=none) inform(tea=black)", "tea", True),
        (Goal({}, other_than=["ada"]), "inform(name=ada)", "name", True),
        (Goal({}, other_than=["ada"]), "inform(name=ben)", "name", False),
        (Goal({}, name="ben"), "inform(name=ada) inform(tea=green)", "name", False),  # a new offer
        (Goal({}, name="ben"), "inform(name=ada) inform(phone=11)", "name", True),  # an answer about another one
        (Goal({}, wanted_name="ben"), "inform(name=ada)", "name", True),
        (Goal({}, wanted_name="ben"), "inform(name=none) except(name=ada)", "name", False),
        (Goal({}, name="ben"), "inform(name=none)", "name", False),
    ],
)
def test_what_contradicts_the_goal(goal, text, slot, wrong):
    assert contradicts_goal(goal, DOMAIN, read_system_turn(parse_acts(text)), slot) is wrong


def test_constraints_that_were_not_repeated():
    turn = read_system_turn(parse_acts("inform(name=cid) inform(area=south) inform(tea=black)"))
    assert find_unconfirmed(Goal({"tea": "green", "area": "south"}), turn) == [("tea", "green")]
    assert find_unconfirmed(Goal({"area": "dontcare"}), turn) == []


NEVER = dict.fromkeys(DECISIONS, 0.0)
GOAL = Goal({"tea": "green", "area": "north"}, {"name": None, "phone": None})


def user(goal: Goal = GOAL, seed: int = 0, **chances: float) -> AgendaUser:
    """A user that does nothing by chance but what the test asks for, and has said the kind of venue."""
    talker = AgendaUser(DOMAIN, NEVER | chances)
    assert format_acts(talker.begin(goal, Random(seed))).startswith("inform(type=cafe)")
    return talker


def says(talker: AgendaUser, text: str) -> str:
    return format_acts(talker.answer(parse_acts(text)))


ADA_TEA = "inform(name=ada) inform(tea=green)"
ADA = f"{ADA_TEA} inform(area=north)"
BEN = ADA.replace("ada", "ben")
PHONE = "inform(name=ada) inform(phone=11)"
NOTHING = "inform(name=none)"


def test_a_dialogue_from_beginning_to_end():
    talker = user()
    assert says(talker, "request(area)") == "inform(area=north)"  # what was asked, before what is next
    assert says(talker, "confirm(tea=green)") == "affirm()"
    assert says(talker, ADA) == "request(phone)"  # the tea is on the agenda still; nothing goes before a request
    assert says(talker, PHONE) == "inform(tea=green)"
    assert talker.goal.requests == {"name": "ada", "phone": "11"}
    assert says(talker, ADA) == "bye()"
    assert GOAL.requests == {"name": None, "phone": None}  # the goal given is not changed
    talker = user()
    for turn in (ADA, PHONE, BEN):
        says(talker, turn)
    assert talker.goal.requests == {"name": "ben", "phone": None}  # a new venue begins the requests again
    talker = AgendaUser(DOMAIN, NEVER | {"greets": 1.0, "combines_informs": 1.0})
    first = format_acts(talker.begin(GOAL, Random(0)))
    assert first == "hello() inform(type=cafe) inform(tea=green) inform(area=north)"


CHANGES = {"changes_mind": 1.0, "relaxes_constraint": 1.0, "says_what_changed": 1.0}
NO_GOAL, ONE = Goal({}), Goal({"tea": "green"})
OPEN, ALL = Goal({}, {"name": None}), Goal({}, {"name": "ada"})


@pytest.mark.parametrize(
    ("goal", "chances", "system", "answer"),
    [
        (GOAL, {"corrects_by_negating": 1.0}, "confirm(tea=black)", "negate() inform(tea=green)"),
        (GOAL, {"corrects_by_negating": 1.0}, "inform(name=dot) inform(tea=black)", "negate() inform(tea=green)"),
        (GOAL, {"corrects_by_denying": 1.0}, "confirm(tea=black)", "deny(tea=black) inform(tea=green)"),
        (GOAL, {}, "confirm(tea=black)", "inform(tea=green)"),
        (GOAL, {"adds_to_affirmation": 1.0}, "confirm(tea=green)", "affirm() inform(tea=green)"),
        (ONE, {}, "confirm(area=north)", "negate() inform(area=dontcare)"),
        (GOAL, {}, "select(tea=black) select(tea=green)", "inform(tea=green)"),
        (ONE, {"dontcare_without_slot": 1.0}, "select(area=north) select(area=south)", "inform(=dontcare)"),
        (GOAL, CHANGES, ADA_TEA, "reqalts() inform(tea=dontcare)"),
        (GOAL, {"relaxes_constraint": 1.0}, f"{NOTHING} inform(area=north)", "reqalts() inform(area=dontcare)"),
        (NO_GOAL, {"gives_up": 1.0}, NOTHING, "bye()"),
        (NO_GOAL, {}, NOTHING, "inform(type=cafe)"),
        (GOAL, {"confirms_at_random": 1.0}, ADA_TEA, "confirm(area=north)"),
        (GOAL, {"thanks": 1.0}, ADA, "thankyou()"),
        (GOAL, {"acknowledges": 1.0}, ADA, "ack()"),
        (GOAL, {"names_venue": 1.0}, ADA, "request(phone) inform(name=ada)"),
        (OPEN, {"affirms_more": 1.0}, "reqmore()", "affirm()"),
        (OPEN, {}, "reqmore()", "inform(type=cafe)"),
        (ALL, {"declines_more": 1.0}, "reqmore()", "negate()"),
        (GOAL, {"affirms_with_agenda": 1.0}, "reqmore()", "affirm() inform(tea=green)"),
        (GOAL, {}, "request(phone)", "negate()"),
        (GOAL, {}, "bye()", "bye()"),
    ],
)
def test_an_answer(goal, chances, system, answer):
    assert says(user(goal, **chances), system) == answer


@pytest.mark.parametrize(
    ("chances", "answer", "constraints"),
    [
        ({}, "inform(area=dontcare)", {"tea": "green", "area": "dontcare"}),
        ({"dontcare_without_slot": 1.0}, "inform(=dontcare)", {"tea": "green", "area": "dontcare"}),
        ({"repeats_constraint": 1.0}, "inform(tea=green)", {"tea": "green"}),
        ({"leaves_open": 1.0}, "inform(=dontcare)", {"tea": "green"}),
    ],
)
def test_a_slot_that_is_not_in_the_goal(chances, answer, constraints):
    talker = user(Goal({"tea": "green"}), **chances)
    assert says(talker, "request(area)") == answer
    assert talker.goal.constraints == constraints


def test_an_alternative_is_wanted_once_and_the_first_venue_refused():
    talker = user(wants_alternative=1.0)
    assert says(talker, ADA) == "reqalts()"
    assert talker.goal.other_than == ["ada"]
    assert says(talker, ADA_TEA) == "reqalts()"  # refused before
    assert says(talker, BEN) == "request(phone)"
    assert (talker.goal.name, talker.goal.other_than) == ("ben", [])
    half = {"wants_alternative": 0.5, "changes_mind": 0.5, "relaxes_constraint": 1.0}
    assert all(says(user(seed=seed, **half), ADA).startswith("reqalts()") for seed in range(20))


def test_a_change_that_is_not_said_becomes_a_request_and_a_question_may_come_first():
    talker = user(changes_mind=1.0)
    assert says(talker, ADA_TEA) == "reqalts()"
    assert talker.goal.constraints["tea"] in ("black", "white")
    assert talker.goal.requests == {"name": None, "phone": None, "tea": None}
    others = {user(seed=seed).answer(parse_acts(f"{NOTHING} inform(area=north)"))[1].value for seed in range(20)}
    assert others == {"south"}  # another value than before
    turns = {says(user(seed=seed, overrules_correction=1.0), "confirm(tea=black)") for seed in range(20)}
    assert turns == {"confirm(area=north)", "confirm(tea=green)"}


def test_one_of_the_only_venues_is_chosen_and_the_one_that_is_wanted_insisted_on():
    talker = user()
    answer = says(talker, f"{NOTHING} except(name=ada) except(name=ben) inform(tea=green)")
    assert answer in ("request(phone) inform(name=ada)", "request(phone) inform(name=ben)")
    assert talker.goal.constraints == {"tea": "green", "area": "dontcare"}  # the area was not named
    talker = AgendaUser(DOMAIN, NEVER)
    talker.begin(Goal({"tea": "green"}, wanted_name="ben", name="ben"), Random(0))
    assert says(talker, "request(name)") == "inform(name=ben)"
    assert says(talker, ADA) == "inform(name=ben)"
    assert says(talker, f"{NOTHING} inform(tea=green)").startswith("reqalts()")
    assert talker.goal.name == "ben"


def test_a_repeated_turn_costs_patience_and_at_last_the_dialogue():
    """The first time is not a repetition; with patience 4 to 6 the user leaves at the fifth to seventh time."""
    patience = set()
    for seed in range(30):
        talker, times = user(seed=seed), 1
        while says(talker, "request(phone)") == "negate()":
            times += 1
        assert times == talker.all_patience + 1
        patience.add(talker.all_patience)
    assert patience == {4, 5, 6}


def test_who_is_not_understood_repeats_itself_and_loses_patience():
    talker = user()
    assert says(talker, "null()") == "inform(type=cafe)"
    assert says(talker, "request(tea)") == "inform(tea=green)"
    assert says(talker, "null()") == "inform(tea=green)"
    assert talker.patience == talker.all_patience - 2


def test_without_patience_a_mistake_ends_the_dialogue():
    """The chance is (1 - patience / all)^2: none at first, .64 with one of five left."""
    ends = 0
    for seed in range(400):
        talker = user(seed=seed)
        talker.patience, talker.all_patience = 1, 5
        ends += says(talker, "confirm(tea=black)") == "bye()"
    assert ends / 400 == pytest.approx(0.64, abs=0.07)
    assert all(says(user(seed=seed), "confirm(tea=black)") != "bye()" for seed in range(50))


def test_chances_are_drawn_once_for_each_dialogue():
    talker, drawn = AgendaUser(DOMAIN, "friendly"), []
    for seed in range(200):
        talker.begin(GOAL, Random(seed))
        drawn.append(talker.chances["greets"])
    assert 0.3 <= min(drawn) < 0.32
    assert 0.68 < max(drawn) <= 0.7
    ranges = read_ranges({"greets": 1, "thanks": [0.0, 0.5]})
    assert (ranges["greets"], ranges["thanks"], ranges["acknowledges"]) == ((1, 1), (0.0, 0.5), (0.01, 0.2))
    assert read_ranges("friendly")["greets"] == (0.3, 0.7)
    assert all(0 <= low <= high <= 1 for kind in KINDS for low, high in read_ranges(kind).values())


@pytest.mark.parametrize(
    ("name", "friendly", "unfriendly", "fixed"),
    [
        ("combines_informs", (0.2, 0.7), (0.0, 0.4), 0.6),
        ("greets", (0.3, 0.7), (0.1, 0.4), 0.5),
        ("relaxes_constraint", (0.5, 0.8), (0.2, 0.5), 0.667),
        ("says_what_changed", (0.4, 0.6), (0.2, 0.4), 0.5),
        ("adds_to_affirmation", (0.2, 0.7), (0.0, 0.4), 1.0),
        ("wants_alternative", (0.01, 0.3), (0.01, 0.3), 0.143),
        ("corrects_by_negating", (0.3, 0.5), (0.3, 0.5), 0.45),
        ("dontcare_without_slot", (0.7, 0.9), (0.7, 0.9), 0.8),
    ],
)
def test_the_parameters_are_those_of_the_benchmark(name, friendly, unfriendly, fixed):
    assert [read_ranges(kind)[name] for kind in ("friendly", "unfriendly")] == [friendly, unfriendly]
    assert read_ranges("fixed")[name] == (fixed, fixed)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("freindly", "'freindly' is unknown; did you mean 'friendly'"),
        ({"greet": 1}, "'greet' is unknown; did you mean 'greets'"),
        ({"greets": 1.5}, "'greets' is 1.5"),
        ({"greets": (0.7, 0.2)}, "'greets' is"),
    ],
)
def test_what_is_not_a_parameter(parameters, message):
    with pytest.raises(UserError, match=message):
        read_ranges(parameters)
