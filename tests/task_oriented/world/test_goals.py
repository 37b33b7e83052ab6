from collections import Counter
from random import Random

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import Domain
from rlhf_dialog.task_oriented.world.goals import Goal, draw_goal, parse_goal
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


def test_what_a_goal_wants_of_an_entity():
    ada = DOMAIN.entity("ada")
    assert Goal({"tea": "green", "area": "dontcare"}).fits(ada)
    assert not Goal({"tea": "black"}).fits(ada)
    assert not Goal({"tea": "green"}, other_than=["ada"]).fits(ada)
    assert not Goal({}, wanted_name="ben").fits(ada)
    assert Goal({}, name="ben").fits(ada)  # settled on, not wanted from the start


def test_a_goal_of_the_user():
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
    ],
)
def test_a_goal_that_cannot_be_fulfilled_names_its_slot(data, words):
    with pytest.raises(UserError) as raised:
        parse_goal(DOMAIN, data)
    assert [word for word in ("of the domain tea", *words) if word not in str(raised.value)] == []


def test_a_name_of_no_entity_is_no_goal():
    domain = Domain("tea", "cafe", DATA["constraints"], DATA["requestable"], DATA["entities"], ["zoe"])
    with pytest.raises(UserError, match="relaxed"):
        parse_goal(domain, {"constraints": {"name": "zoe"}})
