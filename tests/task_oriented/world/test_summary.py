import numpy as np
import pytest

from rlhf_dialog.task_oriented.domains import load_domain
from rlhf_dialog.task_oriented.world.acts import Act, format_acts
from rlhf_dialog.task_oriented.world.summary import Layout, SummaryActions, summarise
from rlhf_dialog.task_oriented.world.tracker import Belief, FocusTracker
from tests.parts.small_domain import small_domain
from tests.parts.strange_domains import strange

DOMAIN = small_domain()


def summary(tea=None, area=None, **parts):
    return summarise(DOMAIN, Belief({"tea": tea or {}, "area": area or {}, "name": {}}, **parts))


@pytest.mark.parametrize(
    ("tea", "accepted"),
    [
        ({"green": 0.6}, True),
        ({"green": 0.4}, False),  # none has .6
        ({"green": 0.5}, True),
        ({"green": 0.36, "black": 0.34}, True),  # above 1 / 2.9, and none has .3
        ({"green": 0.34, "black": 0.33, "white": 0.33}, False),  # not above 1 / 2.9 = .345
        ({"dontcare": 0.9}, True),
        ({}, False),
    ],
)
def test_values_that_are_accepted(tea, accepted):
    assert summary(tea).accepted == ({"tea": next(iter(tea))} if accepted else {})


def test_counts_take_the_most_certain_values_first_and_requests_those_above_one_half():
    """south alone: cid, dot, eve, who differ in their tea; south and black: dot and eve, who do not."""
    found = summary({"black": 0.6}, {"south": 0.9})
    assert found.accepted == {"tea": "black", "area": "south"}
    assert found.counts == [(False, False, True, False, True), (False, False, True, False, False)]
    assert not found.distinguishable
    assert summary().counts == [(False, False, False, True, True)] * 2
    assert summary({"dontcare": 1.0}, {"south": 1.0}).distinguishable is False
    assert summary({}, {"south": 1.0}).distinguishable is True
    assert summary({"white": 1.0}).counts[-1] == (True, False, False, False, False)
    assert summary(requested={"hours": 0.6, "phone": 0.7, "area": 0.5}).requested == ["phone", "hours"]


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


def test_names_and_size_follow_from_the_domain():
    assert SummaryActions(DOMAIN).names == (
        *("request_tea", "confirm_tea", "select_tea", "request_area", "confirm_area", "select_area"),
        *("inform", "inform_byname", "inform_alternatives", "bye", "repeat", "reqmore", "restart"),
    )
    """5 + 4 values with dontcare and none, 6 methods, 6 discourse acts, 4 requestable, 2 flags, 5 counts for each of 2 slots."""
    assert Layout(DOMAIN).size == 5 + 4 + 6 + 6 + 4 + 2 + 10
    assert Layout(load_domain("restaurant")).size == (26 + 7 + 5) + 6 + 6 + 8 + 2 + 15


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


ASKED = {"requested": {"phone": 1.0, "hours": 0.9, "area": 0.2}}
UNSURE = belief_of(slots={"tea": {"green": 0.4, "black": 0.5}})
BLACK, WHITE = ({"tea": {tea: 1.0}, "area": {"dontcare": 1.0}} for tea in ("black", "white"))


@pytest.mark.parametrize(
    ("belief", "name", "turn"),
    [
        (UNSURE, "request_area", "request(area)"),
        (UNSURE, "confirm_tea", "confirm(tea=black)"),
        (UNSURE, "select_tea", "select(tea=black) select(tea=green)"),
        (belief_of(slots=SURE), "inform", "inform(name=ada) inform(tea=green) inform(area=north)"),
        (belief_of(slots=SURE, offered="ben"), "inform", "inform(name=ben) inform(tea=green) inform(area=north)"),
        (belief_of(slots=BLACK), "inform", "inform(name=dot) inform(tea=black) inform(area=south)"),
        (belief_of(slots=WHITE), "inform", "inform(name=none) inform(tea=white)"),
        (belief_of(offered="ada", **ASKED), "inform_byname", "inform(name=ada) inform(phone=11) inform(hours=9 to 5)"),
        (belief_of(offered="ada"), "inform_byname", "inform(name=ada)"),
        (belief_of(name={"zoe": 0.9}), "inform_byname", "inform(name=none)"),
        (belief_of(), "bye", "bye()"),
        (belief_of(), "reqmore", "reqmore()"),
        *(
            (belief_of(), name, "null()")
            for name in ("confirm_tea", "select_tea", "inform_byname", "repeat", "restart")
        ),
    ],
)
def test_the_turn_that_an_action_becomes(belief, name, turn):
    assert says(name, belief) == turn


def test_an_offer_says_at_most_five_values():
    domain = strange("twelve slots")
    belief = Belief({slot: {domain.entities[0][slot]: 1.0} for slot in domain.constraints} | {"name": {}})
    turn = SummaryActions(domain).acts("inform", belief, summarise(domain, belief))
    assert [act.slot for act in turn] == ["name", *list(domain.constraints)[:5]]


def test_alternatives_and_then_nothing_but_what_was_offered():
    both = belief_of(slots=SURE, offered="ada")
    assert says("inform_alternatives", both).startswith("inform(name=ben)")
    both.offers.append("ben")
    assert says("inform_alternatives", both) == (
        "inform(name=none) except(name=ada) except(name=ben) inform(tea=green) inform(area=north)"
    )
    named = belief_of(name={"dot": 0.8}, offered="ada", **ASKED)
    assert says("inform_byname", named) == "inform(name=dot) inform(phone=44) inform(hours=not available)"


def test_a_belief_by_hand():
    belief = Belief(
        {"tea": {"black": 0.5, "dontcare": 0.25}, "area": {}, "name": {}},
        {"byname": 0.75},
        {"thankyou": 0.5, "none": 0.5},
        {"phone": 0.5},
        offer_happened=True,
    )
    vector = Layout(DOMAIN).encode(belief, summarise(DOMAIN, belief))
    assert vector.dtype == np.float32
    tea, area = [0, 0.5, 0, 0.25, 0.25], [0, 0, 0, 1]
    method, discourse = [0.25, 0, 0.75, 0, 0, 0], [0.5, 0, 0, 0, 0, 0.5]
    requested, flags = [0, 0.5, 0, 0], [1, 0]
    counts = [0, 0, 1, 0, 1 * 0, 0, 0, 1, 0, 0]  # black: dot and eve, both in the south
    assert vector.tolist() == pytest.approx([*tea, *area, *method, *discourse, *requested, *flags, *counts])


INFORM = [Act("inform", "tea", "green")]
NULL = [Act("null")]


def tracker() -> FocusTracker:
    return FocusTracker(small_domain())


def test_evidence_adds_up_and_pushes_out_what_was_heard_before():
    """p becomes p * q + s: .6; then .6 * .3 for green and .7 for black; then both times .9 and .1 for green."""
    focus = tracker()
    assert focus.update([], [(INFORM, 0.6), (NULL, 0.4)]).slots["tea"] == pytest.approx({"green": 0.6})
    black = [Act("inform", "tea", "black")]
    assert focus.update([], [(black, 0.7), (NULL, 0.3)]).slots["tea"] == pytest.approx({"green": 0.18, "black": 0.7})
    belief = focus.update([], [(NULL, 0.9), (INFORM, 0.1)])
    assert belief.slots["tea"] == pytest.approx({"green": 0.262, "black": 0.63})
    assert belief.none("tea") == pytest.approx(0.108)
    assert belief.ranked_values("tea") == [("black", pytest.approx(0.63)), ("green", pytest.approx(0.262))]
    assert belief.none("area") == 1
    both = [*INFORM, Act("inform", "area", "north")]
    belief = tracker().update([], [(both, 0.5), (INFORM, 0.3), (NULL, 0.2)])
    assert belief.slots["tea"] == pytest.approx({"green": 0.8})
    assert belief.slots["area"] == pytest.approx({"north": 0.5})
    too_much = [(INFORM, 0.8), ([Act("inform", "tea", "black")], 0.4)]
    assert tracker().update([], too_much).slots["tea"] == pytest.approx({"green": 2 / 3, "black": 1 / 3})


def test_yes_to_a_question_is_its_value_and_no_changes_nothing():
    focus = tracker()
    question = [Act("confirm", "tea", "green")]
    assert focus.update(question, [([Act("affirm")], 0.8), (NULL, 0.2)]).slots["tea"] == pytest.approx({"green": 0.8})
    assert focus.update(question, [([Act("negate")], 1.0)]).slots["tea"] == pytest.approx({"green": 0.8})
    denied = [Act("deny", "tea", "green"), Act("inform", "tea", "black")]
    assert focus.update(question, [(denied, 1.0)]).slots["tea"] == pytest.approx({"black": 1.0})


@pytest.mark.parametrize("question", ["request", "select", "confirm"])
def test_an_answer_without_its_slot_is_about_what_was_asked(question):
    belief = tracker().update([Act(question, "area", "")], [([Act("inform", "", "dontcare")], 1.0)])
    assert belief.slots["area"] == {"dontcare": 1.0}
    assert tracker().update([Act("reqmore")], [([Act("inform", "", "dontcare")], 1.0)]).slots["area"] == {}


@pytest.mark.parametrize(
    ("acts", "method"),
    [
        (INFORM, "byconstraints"),
        ([Act("inform", "name", "ada")], "byname"),
        ([Act("reqalts"), *INFORM], "byalternatives"),
        ([Act("bye")], "finished"),
        ([Act("inform", "type", "cafe")], None),
        ([Act("request", "phone")], None),  # nothing was offered
        ([Act("thankyou")], None),
    ],
)
def test_the_method_of_a_turn(acts, method):
    assert tracker().update([], [(acts, 1.0)]).method == ({method: 1.0} if method else {})


def test_questions_after_an_offer_are_about_the_venue():
    focus = tracker()
    offer = [Act("inform", "name", "ada"), *INFORM]
    assert focus.update(offer, [([Act("request", "phone")], 0.9), (NULL, 0.1)]).method == pytest.approx({"byname": 0.9})
    assert focus.update([], [([Act("thankyou")], 1.0)]).method == pytest.approx({"byname": 0.9})  # stays
    denied = [Act("deny", "tea", "green"), Act("request", "phone")]
    assert focus.update([], [(denied, 1.0)]).method == pytest.approx({"byname": 0.9})


def test_requests_wait_until_they_are_answered():
    focus = tracker()
    asked = [([Act("request", "phone"), Act("request", "hours")], 0.7), (NULL, 0.3)]
    assert focus.update([], asked).requested == pytest.approx({"phone": 0.7, "hours": 0.7})
    assert focus.update([], asked).requested == {"phone": 1.0, "hours": 1.0}
    answer = [Act("inform", "name", "ada"), Act("inform", "phone", "11")]
    assert focus.update(answer, [(NULL, 1.0)]).requested == {"hours": 1.0}
    assert tracker().update([], [([Act("confirm", "tea", "green")], 1.0)]).requested == {"tea": 1.0}


def test_offers_and_discourse_acts_are_those_of_this_turn_and_reset_forgets():
    focus = tracker()
    belief = focus.update([Act("inform", "name", "ada")], [(NULL, 1.0)])
    assert (belief.offered, belief.offers, belief.offer_happened, belief.nothing_found) == ("ada", ["ada"], True, False)
    belief = focus.update([Act("request", "tea")], [(NULL, 1.0)])
    assert (belief.offered, belief.offer_happened) == ("ada", False)
    belief = focus.update([Act("inform", "name", "none"), Act("except", "name", "ada")], [(NULL, 1.0)])
    assert (belief.offered, belief.offers, belief.offer_happened, belief.nothing_found) == ("ada", [], False, True)
    focus = tracker()
    assert focus.update([], [([Act("thankyou")], 0.6), (NULL, 0.4)]).discourse_act == {"thankyou": 0.6, "none": 0.4}
    assert focus.update([], [(INFORM, 1.0)]).discourse_act == {"none": 1.0}
    focus.update([Act("inform", "name", "ada")], [(INFORM, 1.0)])
    focus.reset()
    assert focus.belief.slots == {"tea": {}, "area": {}, "name": {}}
    assert (focus.belief.offered, focus.belief.method, focus.belief.requested) == ("", {}, {})
