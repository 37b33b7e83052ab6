import pytest

from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.goals import Goal
from rlhf_dialog.task_oriented.world.success import DialogueOutcome, Evaluator, evaluate
from tests.parts.small_domain import small_domain

DOMAIN = small_domain()
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


def test_the_goal_at_the_end_counts():
    turns = [OFFER, PHONE, HOURS]
    assert not evaluate(DOMAIN, Goal(GOAL.constraints, GOAL.requests, other_than=["ada"]), turns).success
    assert not evaluate(DOMAIN, Goal(GOAL.constraints, GOAL.requests, wanted_name="ben"), turns).success
    assert evaluate(DOMAIN, Goal({"tea": "dontcare"}, {"name": None}), [informs("eve")]).success


def test_one_of_the_only_venues_is_enough():
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
