import pytest

from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.tracker import FocusTracker
from tests.parts.small_domain import small_domain

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


def test_hypotheses_of_one_value_are_added():
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
def test_the_method(acts, method):
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


def test_offers():
    focus = tracker()
    belief = focus.update([Act("inform", "name", "ada")], [(NULL, 1.0)])
    assert (belief.offered, belief.offers, belief.offer_happened, belief.nothing_found) == ("ada", ["ada"], True, False)
    belief = focus.update([Act("request", "tea")], [(NULL, 1.0)])
    assert (belief.offered, belief.offer_happened) == ("ada", False)
    belief = focus.update([Act("inform", "name", "none"), Act("except", "name", "ada")], [(NULL, 1.0)])
    assert (belief.offered, belief.offers, belief.offer_happened, belief.nothing_found) == ("ada", [], False, True)


def test_discourse_acts_are_those_of_this_turn_and_reset_forgets():
    focus = tracker()
    assert focus.update([], [([Act("thankyou")], 0.6), (NULL, 0.4)]).discourse_act == {"thankyou": 0.6, "none": 0.4}
    assert focus.update([], [(INFORM, 1.0)]).discourse_act == {"none": 1.0}
    focus.update([Act("inform", "name", "ada")], [(INFORM, 1.0)])
    focus.reset()
    assert focus.belief.slots == {"tea": {}, "area": {}, "name": {}}
    assert (focus.belief.offered, focus.belief.method, focus.belief.requested) == ("", {}, {})
