from collections import Counter
from random import Random

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.acts import Act, format_acts
from rlhf_dialog.task_oriented.world.goals import Goal
from rlhf_dialog.task_oriented.world.users import AgendaUser
from rlhf_dialog.task_oriented.world.users.agenda import contradicts_goal, find_unconfirmed, read_system_turn
from rlhf_dialog.task_oriented.world.users.parameters import FRIENDLY, read_ranges
from tests.parts.small_domain import small_domain

DOMAIN = small_domain()
WISH = Goal({"tea": "green", "area": "dontcare"})


def informs(*pairs: tuple[str, str]) -> list[Act]:
    return [Act("inform", *pair) for pair in pairs]


def test_what_a_turn_says_of_venues():
    said = read_system_turn(informs(("name", "ada"), ("tea", "green")))
    assert (said.intent, said.offer, said.empty, said.slots) == ("inform", "ada", False, {"name", "tea"})
    said = read_system_turn(informs(("name", "none"), ("tea", "white")))
    assert (said.offer, said.empty, said.choices) == ("", True, ())
    said = read_system_turn([Act("inform", "name", "none"), Act("except", "name", "ada"), Act("except", "name", "ben")])
    assert (said.offer, said.empty, said.choices) == ("", False, ("ada", "ben"))
    assert read_system_turn([]).intent == read_system_turn([Act("null")]).intent == "null"


@pytest.mark.parametrize(
    ("goal", "acts", "slot", "wrong"),
    [
        (WISH, [Act("confirm", "tea", "black")], "tea", True),
        (WISH, [Act("confirm", "tea", "green")], "tea", False),
        (WISH, [Act("confirm", "area", "north")], "area", False),  # the user does not care
        (WISH, [Act("confirm", "phone", "11")], "phone", False),
        (WISH, informs(("name", "none"), ("tea", "black")), "tea", True),
        (Goal({}, other_than=["ada"]), informs(("name", "ada")), "name", True),
        (Goal({}, other_than=["ada"]), informs(("name", "ben")), "name", False),
        (Goal({}, name="ben"), informs(("name", "ada"), ("tea", "green")), "name", False),  # a new offer
        (Goal({}, name="ben"), informs(("name", "ada"), ("phone", "11")), "name", True),  # an answer about another one
        (Goal({}, wanted_name="ben"), informs(("name", "ada")), "name", True),
        (Goal({}, name="ben"), informs(("name", "none")), "name", False),
    ],
)
def test_what_contradicts_the_goal(goal, acts, slot, wrong):
    assert contradicts_goal(goal, DOMAIN, read_system_turn(acts), slot) is wrong


def test_constraints_that_were_not_repeated():
    goal = Goal({"tea": "green", "area": "south"})
    assert find_unconfirmed(goal, read_system_turn(informs(("name", "cid"), ("area", "south")))) == [("tea", "green")]
    assert find_unconfirmed(WISH, read_system_turn(informs(("name", "cid"), ("tea", "green")))) == []


NEVER = dict.fromkeys(FRIENDLY, 0.0)
GOAL = Goal({"tea": "green", "area": "north"}, {"name": None, "phone": None})


def user(goal: Goal = GOAL, seed: int = 0, **chances: float) -> AgendaUser:
    """A user that does nothing by chance but what the test asks for, and has said the kind of venue."""
    talker = AgendaUser(DOMAIN, NEVER | chances)
    assert format_acts(talker.begin(goal, Random(seed))).startswith("inform(type=cafe)")
    return talker


def offer(name: str, **values: str) -> list[Act]:
    return [Act("inform", "name", name), *(Act("inform", slot, value) for slot, value in values.items())]


ADA = offer("ada", tea="green", area="north")


def says(talker: AgendaUser, *acts: Act) -> str:
    return format_acts(talker.answer(list(acts)))


def test_a_dialogue_from_beginning_to_end():
    talker = user()
    assert says(talker, Act("request", "area")) == "inform(area=north)"  # what was asked, before what is next
    assert says(talker, Act("confirm", "tea", "green")) == "affirm()"
    assert says(talker, *ADA) == "request(phone)"  # the tea is on the agenda still; nothing goes before a request
    assert says(talker, *offer("ada", phone="11")) == "inform(tea=green)"
    assert says(talker, *ADA) == "bye()"
    assert GOAL.requests == {"name": None, "phone": None}  # the goal given is not changed


def test_informs_are_combined():
    talker = AgendaUser(DOMAIN, NEVER | {"greets": 1.0, "combines_informs": 1.0})
    assert (
        format_acts(talker.begin(GOAL, Random(0))) == "hello() inform(type=cafe) inform(tea=green) inform(area=north)"
    )


@pytest.mark.parametrize(
    ("chances", "answer"),
    [
        ({"corrects_by_negating": 1.0}, "negate() inform(tea=green)"),
        ({"corrects_by_denying": 1.0}, "deny(tea=black) inform(tea=green)"),
        ({}, "inform(tea=green)"),
    ],
)
def test_what_is_wrong_is_corrected(chances, answer):
    assert says(user(**chances), Act("confirm", "tea", "black")) == answer
    assert says(user(**chances), Act("inform", "name", "dot"), Act("inform", "tea", "black")) == answer


def test_a_question_may_come_before_the_correction():
    turns = {says(user(seed=seed, overrules_correction=1.0), Act("confirm", "tea", "black")) for seed in range(20)}
    assert turns == {"confirm(area=north)", "confirm(tea=green)"}


def test_what_the_user_does_not_care_about_cannot_be_confirmed():
    assert says(user(Goal({"tea": "green"})), Act("confirm", "area", "north")) == "negate() inform(area=dontcare)"


def test_a_choice_of_two():
    assert says(user(), Act("select", "tea", "black"), Act("select", "tea", "green")) == "inform(tea=green)"
    talker = user(Goal({"tea": "green"}), dontcare_without_slot=1.0)
    assert says(talker, Act("select", "area", "north"), Act("select", "area", "south")) == "inform(=dontcare)"


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
    assert says(talker, Act("request", "area")) == answer
    assert talker.goal.constraints == constraints


def test_a_new_venue_begins_the_requests_again():
    talker = user()
    says(talker, *ADA)
    says(talker, *offer("ada", phone="11"))
    assert talker.goal.requests == {"name": "ada", "phone": "11"}
    says(talker, *offer("ben", tea="green", area="north"))
    assert talker.goal.requests == {"name": "ben", "phone": None}


def test_an_alternative_is_wanted_once_and_the_first_venue_refused():
    talker = user(wants_alternative=1.0)
    assert says(talker, *ADA) == "reqalts()"
    assert talker.goal.other_than == ["ada"]
    assert says(talker, Act("inform", "name", "ada"), Act("inform", "tea", "green")) == "reqalts()"  # refused before
    assert says(talker, *offer("ben", tea="green", area="north")) == "request(phone)"
    assert talker.goal.name == "ben"


def test_the_user_changes_its_mind():
    talker = user(changes_mind=1.0, relaxes_constraint=1.0, says_what_changed=1.0)
    assert says(talker, *offer("ada", tea="green")) == "reqalts() inform(tea=dontcare)"
    assert talker.goal.constraints == {"tea": "dontcare", "area": "north"}


def test_a_change_that_is_not_said_becomes_a_request():
    talker = user(changes_mind=1.0)
    assert says(talker, *offer("ada", tea="green")) == "reqalts()"
    assert talker.goal.constraints["tea"] in ("black", "white")
    assert talker.goal.requests == {"name": None, "phone": None, "tea": None}


def test_where_nothing_fits_the_user_relaxes_what_the_system_names():
    nothing = [Act("inform", "name", "none"), Act("inform", "area", "north")]
    talker = user(relaxes_constraint=1.0)
    assert says(talker, *nothing) == "reqalts() inform(area=dontcare)"
    values = Counter(user(seed=seed).answer(nothing)[1].value for seed in range(20))
    assert set(values) == {"south"}  # another value than before


def test_without_constraints_the_user_gives_up_or_says_it_again():
    nothing = Act("inform", "name", "none")
    assert says(user(Goal({}), gives_up=1.0), nothing) == "bye()"
    assert says(user(Goal({})), nothing) == "inform(type=cafe)"


def test_one_of_the_only_venues_is_chosen():
    only = [Act("inform", "name", "none"), Act("except", "name", "ada"), Act("except", "name", "ben"), *ADA[1:2]]
    talker = user()
    assert says(talker, *only) in ("request(phone) inform(name=ada)", "request(phone) inform(name=ben)")
    assert talker.goal.constraints == {"tea": "green", "area": "dontcare"}  # the area was not named


def test_the_venue_that_is_wanted_is_insisted_on():
    talker = AgendaUser(DOMAIN, NEVER)
    goal = Goal({"tea": "green"}, wanted_name="ben", name="ben")
    talker.begin(goal, Random(0))
    assert says(talker, Act("request", "name")) == "inform(name=ben)"
    assert says(talker, *ADA) == "inform(name=ben)"
    assert says(talker, Act("inform", "name", "none"), Act("inform", "tea", "green")).startswith("reqalts()")
    assert talker.goal.name == "ben"


def test_a_random_confirmation():
    assert says(user(confirms_at_random=1.0), *offer("ada", tea="green")) == "confirm(area=north)"


@pytest.mark.parametrize(("chance", "answer"), [("thanks", "thankyou()"), ("acknowledges", "ack()")])
def test_thanks(chance, answer):
    assert says(user(**{chance: 1.0}), *ADA) == answer


def test_anything_else():
    talker = user(Goal({}, {"name": None}), declines_more=1.0, affirms_more=1.0)
    assert says(talker, Act("reqmore")) == "affirm()"
    talker = user(Goal({}, {"name": None}), declines_more=1.0)
    talker.goal.requests["name"] = "ada"
    assert says(talker, Act("reqmore")) == "negate()"
    talker = user(Goal({}, {"name": None}))
    assert says(talker, Act("reqmore")) == "inform(type=cafe)"


def test_a_repeated_turn_costs_patience_and_at_last_the_dialogue():
    """The first time is not a repetition; with patience 4 to 6 the user leaves at the fifth to seventh time."""
    for seed in range(30):
        talker = user(seed=seed)
        times = 1
        while says(talker, Act("request", "phone")) == "negate()":
            times += 1
        assert times == talker.all_patience + 1
        assert 4 <= talker.all_patience <= 6


def test_who_is_not_understood_repeats_itself_and_loses_patience():
    talker = user()
    assert says(talker, Act("null")) == "inform(type=cafe)"
    assert says(talker, Act("request", "tea")) == "inform(tea=green)"
    assert says(talker, Act("null")) == "inform(tea=green)"
    assert talker.patience == talker.all_patience - 2


def test_without_patience_a_mistake_ends_the_dialogue():
    """The chance is (1 - patience / all)^2: none at first, .64 with one of five left."""
    ends = 0
    for seed in range(400):
        talker = user(seed=seed)
        talker.patience, talker.all_patience = 1, 5
        ends += says(talker, Act("confirm", "tea", "black")) == "bye()"
    assert ends / 400 == pytest.approx(0.64, abs=0.07)
    assert all(says(user(seed=seed), Act("confirm", "tea", "black")) != "bye()" for seed in range(50))


def test_chances_are_drawn_once_for_each_dialogue():
    talker = AgendaUser(DOMAIN, "friendly")
    drawn = []
    for seed in range(200):
        talker.begin(GOAL, Random(seed))
        drawn.append(talker.chances["greets"])
    assert 0.3 <= min(drawn) < 0.32
    assert 0.68 < max(drawn) <= 0.7


def test_changes():
    ranges = read_ranges({"greets": 1, "thanks": [0.0, 0.5]})
    assert (ranges["greets"], ranges["thanks"], ranges["acknowledges"]) == ((1, 1), (0.0, 0.5), (0.01, 0.2))
    assert FRIENDLY["greets"] == (0.3, 0.7)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("freindly", "user 'freindly' is unknown; did you mean 'friendly'"),
        ({"greet": 1}, "user parameter 'greet' is unknown; did you mean 'greets'"),
        ({"greets": 1.5}, "user parameter 'greets' is 1.5; give a probability"),
        ({"greets": (0.7, 0.2)}, "give a probability, or a range of them"),
    ],
)
def test_what_is_not_a_parameter(parameters, message):
    with pytest.raises(UserError, match=message):
        read_ranges(parameters)
