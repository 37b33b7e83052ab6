from collections import Counter
from random import Random

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import Domain
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.goals import Goal, draw_goal, parse_goal
from rlhf_dialog.task_oriented.world.success import DialogueOutcome, Evaluator, evaluate
from tests.parts.small_domain import DATA, small_domain

DOMAIN = small_domain()


def test_two_or_three_entities_fulfil_a_drawn_goal():
    for seed in range(50):
        goal = draw_goal(DOMAIN, Random(seed))
        assert 2 <= sum(goal.fits(entity) for entity in DOMAIN.entities) <= 3
        assert set(goal.constraints) == {"tea", "area"}


def test_requests_are_the_name_and_up_to_two_more():
    """A third of the goals ask for nothing more; of the three slots one is the name, so that others ask for fewer than drawn."""
    goals = [draw_goal(DOMAIN, Random(seed)) for seed in range(3000)]
    assert {slot for goal in goals for slot in goal.requests} == {"name", "phone", "hours"}
    sizes = Counter(len(goal.requests) for goal in goals)
    # 1: drawn none (1/3), or one that is the name (1/3 * 1/3); 2: one other (1/3 * 2/3) or two with the name (1/3 * 2/3)
    assert sizes[1] / 3000 == pytest.approx(4 / 9, abs=0.03)
    assert sizes[2] / 3000 == pytest.approx(4 / 9, abs=0.03)
    assert sizes[3] / 3000 == pytest.approx(1 / 9, abs=0.03)


def test_what_a_goal_wants_of_an_entity_and_a_goal_of_the_user():
    ada = DOMAIN.entity("ada")
    assert Goal({"tea": "green", "area": "dontcare"}).fits(ada)
    assert not Goal({"tea": "black"}).fits(ada)
    assert not Goal({"tea": "green"}, other_than=["ada"]).fits(ada)
    assert not Goal({}, wanted_name="ben").fits(ada)
    assert Goal({}, name="ben").fits(ada)  # settled on, not wanted from the start
    goal = parse_goal(DOMAIN, {"constraints": {"tea": "white", "name": "ada"}, "requests": ["phone"]})
    assert (goal.constraints, list(goal.requests), goal.wanted_name) == ({"tea": "white"}, ["name", "phone"], "ada")
    assert goal.as_dict()["constraints"] == {"tea": "white", "name": "ada"}
    assert parse_goal(DOMAIN, {}).constraints == {}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (["tea"], ("requests",)),
        ({"constraints": ["tea"]}, ("requests",)),
        ({"constraints": {"te": "green"}}, ("'te'", "'tea'")),
        ({"constraints": {"tea": "grean"}}, ("'tea'", "'grean'", "'green'")),
        ({"requests": ["tea"]}, ("'tea' is not requestable",)),
        ({"constraints": {"name": "bea", "tea": "green"}}, ("'name'", "'bea'", "'ben'")),
        ({"constraints": {"name": "dot"}, "requests": ["hours"]}, ("relaxed",)),
        ({"constraints": {"name": "zoe"}}, ("relaxed",)),  # of no entity
    ],
)
def test_a_goal_that_cannot_be_fulfilled_names_its_slot(data, words):
    domain = Domain("tea", "cafe", DATA["constraints"], DATA["requestable"], DATA["entities"], ["zoe"])
    with pytest.raises(UserError) as raised:
        parse_goal(domain, data)
    assert [word for word in ("of the domain tea", *words) if word not in str(raised.value)] == []


GOAL = Goal({"tea": "green", "area": "north"}, {"name": None, "phone": None, "hours": None})


def informs(name: str, **values: str) -> list[Act]:
    return [Act("inform", "name", name), *(Act("inform", slot, value) for slot, value in values.items())]


PERFECT = DialogueOutcome(True, 1.0, 1.0, 1.0)  # also where nothing is asked
OFFER = informs("ada", tea="green", area="north")
PHONE, HOURS = informs("ada", phone="11"), informs("ada", hours="9 to 5")
BOTH = [Act("inform", "name", "none"), Act("except", "name", "ada"), Act("except", "name", "ben")]


@pytest.mark.parametrize(
    ("turns", "success"),
    [
        ([OFFER, PHONE, HOURS], True),
        ([informs("ada", phone="11", hours="9 to 5")], True),
        ([OFFER, PHONE], False),  # the hours were asked, too
        ([OFFER, informs("ada", phone="22", hours="9 to 5")], False),  # Ben's number
        ([OFFER, PHONE, HOURS, informs("cid")], False),  # the last offer does not fit
        ([informs("cid"), OFFER, PHONE, HOURS], True),
        ([PHONE, HOURS, informs("ben")], False),  # answers about another venue
        ([PHONE, HOURS, informs("ben"), OFFER], True),
        ([[*BOTH, *PHONE[1:], *HOURS[1:]]], False),  # answers about two venues
        ([], False),
        ([[Act("bye")]], False),
        ([[Act("inform", "name", "none")]], False),
        ([informs("zoe", phone="11", hours="9 to 5")], False),
    ],
)
def test_success_is_strict(turns, success):
    assert evaluate(DOMAIN, GOAL, turns).success is success


def test_the_goal_at_the_end_counts_and_one_of_the_only_venues_is_enough():
    turns = [OFFER, PHONE, HOURS]
    assert not evaluate(DOMAIN, Goal(GOAL.constraints, GOAL.requests, other_than=["ada"]), turns).success
    assert not evaluate(DOMAIN, Goal(GOAL.constraints, GOAL.requests, wanted_name="ben"), turns).success
    assert evaluate(DOMAIN, Goal({"tea": "dontcare"}, {"name": None}), [informs("eve")]).success
    only = [Act("inform", "name", "none"), Act("except", "name", "cid"), Act("except", "name", "ada")]
    assert evaluate(DOMAIN, Goal(GOAL.constraints), [only]).success
    assert evaluate(DOMAIN, GOAL, [PHONE, HOURS, only]).success
    assert not evaluate(DOMAIN, GOAL, [only]).success


@pytest.mark.parametrize(
    ("turns", "numbers"),
    [
        ([OFFER, PHONE], (1, 1 / 2, 2 / 3)),
        ([OFFER, PHONE, HOURS, informs("ada", area="north", colour="red")], (2 / 3, 1, 4 / 5)),  # colour: nobody asked
        ([OFFER], (0, 0, 0)),
        ([], (0, 0, 0)),
    ],
)
def test_precision_recall_and_f1_by_hand(turns, numbers):
    outcome = evaluate(DOMAIN, GOAL, turns)
    assert (outcome.precision, outcome.recall, outcome.f1) == pytest.approx(numbers)
    assert evaluate(DOMAIN, Goal({"tea": "green"}), [informs("ada", tea="green")]) == PERFECT


def test_each_venue_of_a_list_must_fit():
    """In words, a system could name all venues."""
    fits, names_all = (
        [Act("inform", "name", "none"), *(Act("except", "name", name) for name in names)]
        for names in (("ada", "ben"), ("ada", "ben", "cid"))
    )
    goal = Goal({"tea": "green", "area": "north"})
    assert (evaluate(DOMAIN, goal, [names_all]).success, Evaluator(DOMAIN)(goal, [names_all]).success) == (True, False)
    assert Evaluator(DOMAIN)(goal, [fits, [Act("bye")]]) == evaluate(DOMAIN, goal, [fits])
    assert Evaluator(DOMAIN)(GOAL, [OFFER, PHONE, HOURS]) == PERFECT
    assert not Evaluator(DOMAIN)(goal, []).success


def given(*pairs: tuple[str, str]) -> list[Act]:
    return [Act("inform", slot, value) for slot, value in pairs]


@pytest.mark.parametrize(
    ("turn", "success"),
    [
        (given(("phone", "22"), ("phone", "11")), False),  # Ben's number, then Ada's
        (given(("phone", "11"), ("phone", "22")), False),
        (given(("phone", "22"), ("phone", "11"), ("phone", "11")), False),
        (given(("phone", "11"), ("hours", "9 to 5"), ("phone", "11")), True),  # twice the same is one value
        (given(("area", "north"), ("area", "south"), ("phone", "11")), True),  # nobody asked for the area
        ([Act("confirm", "phone", "22"), *given(("phone", "11"))], True),  # not informed
    ],
)
def test_several_values_for_a_slot_in_a_turn_are_no_answer(turn, success):
    """In words, a system could say all telephone numbers."""
    turns = [OFFER, HOURS, [Act("inform", "name", "ada"), *turn]]
    assert Evaluator(DOMAIN)(GOAL, turns).success is success
    assert Evaluator(DOMAIN)(GOAL, [*turns, PHONE]).success  # a later turn says which one is right
    assert not Evaluator(DOMAIN)(GOAL, [OFFER, PHONE, HOURS, given(("phone", "11"), ("phone", "22"))]).success
    assert turns[2][1:] == turn
