import pytest
from small_domain import small_domain

from rlhf_dialog.task_oriented.world.summary import summarise
from rlhf_dialog.task_oriented.world.tracker import Belief

DOMAIN = small_domain()


def summary(tea=None, area=None, **parts):
    return summarise(DOMAIN, Belief({"tea": tea or {}, "area": area or {}, "name": {}}, **parts))


@pytest.mark.parametrize(
    ("tea", "accepted"),
    [
        ({"green": 0.6}, True),
        ({"green": 0.4}, False),  # none has .6
        ({"green": 0.36, "black": 0.34}, True),  # above 1 / 2.9, and none has .3
        ({"green": 0.34, "black": 0.33, "white": 0.33}, False),  # not above 1 / 2.9 = .345
        ({"dontcare": 0.9}, True),
        ({}, False),
    ],
)
def test_values_that_are_accepted(tea, accepted):
    assert summary(tea).accepted == ({"tea": next(iter(tea))} if accepted else {})


def test_counts_take_the_most_certain_values_first():
    """south alone: cid, dot, eve, who differ in their tea; south and black: dot and eve, who do not."""
    found = summary({"black": 0.6}, {"south": 0.9})
    assert found.accepted == {"tea": "black", "area": "south"}
    assert found.counts == [(False, False, True, False, True), (False, False, True, False, False)]
    assert not found.distinguishable


def test_counts_without_values_are_those_of_all_entities():
    assert summary().counts == [(False, False, False, True, True)] * 2


def test_what_the_user_does_not_care_about_does_not_distinguish():
    assert summary({"dontcare": 1.0}, {"south": 1.0}).distinguishable is False
    assert summary({}, {"south": 1.0}).distinguishable is True
    assert summary({"white": 1.0}).counts[-1] == (True, False, False, False, False)


@pytest.mark.parametrize(
    ("method", "top"),
    [
        ({}, "byconstraints"),
        ({"byname": 0.5, "byalternatives": 0.2}, "byname"),
        ({"byname": 0.3, "byalternatives": 0.2}, "byconstraints"),  # none has .5
        ({"finished": 0.5, "byname": 0.4}, "byconstraints"),
        ({"finished": 0.6}, "finished"),
    ],
)
def test_the_method(method, top):
    assert summary(method=method).method == top


def test_requests_above_one_half():
    assert summary(requested={"hours": 0.6, "phone": 0.7, "area": 0.5}).requested == ["phone", "hours"]
