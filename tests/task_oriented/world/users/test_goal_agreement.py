import pytest
from small_domain import small_domain

from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.goals import Goal
from rlhf_dialog.task_oriented.world.users.goal_agreement import contradicts_goal, find_unconfirmed, read_system_turn

DOMAIN = small_domain()
GOAL = Goal({"tea": "green", "area": "dontcare"})


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
        (GOAL, [Act("confirm", "tea", "black")], "tea", True),
        (GOAL, [Act("confirm", "tea", "green")], "tea", False),
        (GOAL, [Act("confirm", "area", "north")], "area", False),  # the user does not care
        (GOAL, [Act("confirm", "phone", "11")], "phone", False),
        (GOAL, informs(("name", "none"), ("tea", "black")), "tea", True),
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
    assert find_unconfirmed(GOAL, read_system_turn(informs(("name", "cid"), ("tea", "green")))) == []
