import pytest
from small_domain import small_domain

from rlhf_dialog.task_oriented.world.acts import Act, format_acts
from rlhf_dialog.task_oriented.world.summary import summarise
from rlhf_dialog.task_oriented.world.summary_actions import SummaryActions
from rlhf_dialog.task_oriented.world.tracker import Belief

DOMAIN = small_domain()
SURE = {"tea": {"green": 1.0}, "area": {"north": 1.0}}


def belief_of(name=None, offered="", **parts) -> Belief:
    slots = {"tea": {}, "area": {}, "name": name or {}} | parts.pop("slots", {})
    return Belief(slots, offered=offered, offers=[offered] if offered else [], **parts)


def allowed(belief: Belief, actions: SummaryActions | None = None) -> set[str]:
    actions = actions or SummaryActions(DOMAIN)
    mask = actions.mask(belief, summarise(DOMAIN, belief))
    return {name for name, one in zip(actions.names, mask, strict=True) if one}


def says(name: str, belief: Belief, actions: SummaryActions | None = None) -> str:
    return format_acts((actions or SummaryActions(DOMAIN)).acts(name, belief, summarise(DOMAIN, belief)))


REQUESTS = {"request_tea", "request_area"}


def test_the_names():
    assert SummaryActions(DOMAIN).names == (
        *("request_tea", "confirm_tea", "select_tea", "request_area", "confirm_area", "select_area"),
        *("inform", "inform_byname", "inform_alternatives", "bye", "repeat", "reqmore", "restart"),
    )


@pytest.mark.parametrize(
    ("belief", "more"),
    [
        (belief_of(), set()),
        (belief_of(slots={"tea": {"green": 0.4}}), {"confirm_tea"}),
        (belief_of(slots={"tea": {"green": 0.4, "black": 0.1}}), {"confirm_tea", "select_tea"}),
        (belief_of(slots=SURE), {"confirm_tea", "confirm_area", "inform"}),
        (belief_of(slots=SURE, method={"byname": 1.0}), {"confirm_tea", "confirm_area"}),
        (belief_of(slots={"tea": {"black": 1.0}}), {"confirm_tea", "inform"}),  # dot and eve are in one place
        (belief_of(offered="ada", method={"byname": 1.0}), {"inform_byname", "reqmore"}),
        (belief_of(name={"ada": 0.8}, method={"byname": 1.0}), {"inform_byname"}),
        (belief_of(name={"ada": 0.79}, method={"byname": 1.0}), set()),
        (belief_of(offered="ada", method={"byalternatives": 1.0}), {"inform_alternatives", "reqmore"}),
        (belief_of(method={"byalternatives": 1.0}), set()),  # nothing was offered
        (belief_of(method={"finished": 0.6}), {"bye"}),
        (belief_of(discourse_act={"repeat": 1.0}), set()),
    ],
)
def test_what_makes_sense(belief, more):
    assert allowed(belief) == REQUESTS | more


def test_alternatives_are_wanted_until_they_are_given():
    actions = SummaryActions(DOMAIN)
    assert "inform_alternatives" in allowed(belief_of(offered="ada", method={"byalternatives": 1.0}), actions)
    later = belief_of(offered="ada", method={"byname": 1.0}, slots=SURE)
    assert "inform_alternatives" in allowed(later, actions)
    says("inform_alternatives", later, actions)
    assert "inform_alternatives" not in allowed(later, actions)
    allowed(belief_of(offered="ada", method={"byalternatives": 1.0}), actions)
    actions.reset()
    assert "inform_alternatives" not in allowed(later, actions)


def test_questions():
    belief = belief_of(slots={"tea": {"green": 0.4, "black": 0.5}})
    assert says("request_area", belief) == "request(area)"
    assert says("confirm_tea", belief) == "confirm(tea=black)"
    assert says("select_tea", belief) == "select(tea=black) select(tea=green)"


def test_an_offer_has_the_values_of_the_entity():
    assert says("inform", belief_of(slots=SURE)) == "inform(name=ada) inform(tea=green) inform(area=north)"
    assert says("inform", belief_of(slots=SURE, offered="ben")).startswith("inform(name=ben)")  # it still fits
    open_area = {"tea": {"black": 1.0}, "area": {"dontcare": 1.0}}
    assert says("inform", belief_of(slots=open_area)) == "inform(name=dot) inform(tea=black) inform(area=south)"


def test_nothing_fits():
    belief = belief_of(slots={"tea": {"white": 1.0}, "area": {"dontcare": 1.0}})
    assert says("inform", belief) == "inform(name=none) inform(tea=white)"


def test_alternatives_and_then_nothing_but_what_was_offered():
    assert says("inform_alternatives", belief_of(slots=SURE, offered="ada")).startswith("inform(name=ben)")
    both = belief_of(slots=SURE, offered="ada")
    both.offers.append("ben")
    assert says("inform_alternatives", both) == (
        "inform(name=none) except(name=ada) except(name=ben) inform(tea=green) inform(area=north)"
    )


def test_answers_are_about_the_venue_that_was_named_or_offered():
    asked = {"requested": {"phone": 1.0, "hours": 0.9, "area": 0.2}}
    assert says("inform_byname", belief_of(offered="ada", **asked)) == (
        "inform(name=ada) inform(phone=11) inform(hours=9 to 5)"
    )
    named = belief_of(name={"dot": 0.8}, offered="ada", **asked)
    assert says("inform_byname", named) == "inform(name=dot) inform(phone=44) inform(hours=not available)"
    assert says("inform_byname", belief_of(offered="ada")) == "inform(name=ada)"


@pytest.mark.parametrize("name", ["confirm_tea", "select_tea", "inform_byname", "repeat", "restart"])
def test_what_cannot_be_said_is_not_understood(name):
    assert SummaryActions(DOMAIN).acts(name, belief_of(), summarise(DOMAIN, belief_of())) == [Act("null")]


def test_goodbye_and_more():
    assert (says("bye", belief_of()), says("reqmore", belief_of())) == ("bye()", "reqmore()")
