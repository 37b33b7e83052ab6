import re
from random import Random

import pytest

from rlhf_dialog.task_oriented.world.acts import parse_acts
from rlhf_dialog.task_oriented.world.multi_domain.state import BookingDesk, DialogueState
from tests.parts.small_world import small_world

WORLD = small_world()


def after(*turns):
    """The state after turns of system and user, in text."""
    state = DialogueState(WORLD)
    for system, user in turns:
        state.update(parse_acts(system), parse_acts(user))
    return state


def test_what_the_user_said_is_known():
    state = after(("", "inform(hotel) inform(hotel-area=north)"), ("", "request(restaurant-phone)"))
    assert list(state.domains) == ["hotel", "restaurant"]
    assert state.current == "restaurant"
    assert state.domains["hotel"].constraints == {"area": "north"}
    assert state.domains["hotel"].matches == (0, 2, 4)
    assert list(state.domains["restaurant"].asked) == ["phone"]


def test_an_offer_holds_until_it_does_not_fit():
    asked = ("", "inform(hotel-area=north)")
    offered = ("recommend(hotel-name=ivory house)", "request(hotel-phone)")
    state = after(asked, offered)
    assert (state.domains["hotel"].offered, state.domains["hotel"].choice) == (2, 2)
    assert after(asked, offered, ("", "inform(hotel-stars=4)")).domains["hotel"].offered == 2
    changed = after(asked, offered, ("", "inform(hotel-area=south)")).domains["hotel"]
    assert (changed.offered, changed.choice) == (None, 1)


def test_an_answer_closes_a_request():
    state = after(("", "request(hotel-phone) request(hotel-stars)"), ("inform(hotel-phone=06660)", "reqmore()"))
    assert list(state.domains["hotel"].asked) == ["stars"]


def test_nothing_is_offered_before_the_needed_slots_are_known():
    state = after(("", "inform(train-day=friday) inform(train-departure=oakhaven)")).domains["train"]
    assert (state.is_ready, state.choice, state.missing) == (False, None, ["destination"])
    state = after(("", "inform(train-day=friday) inform(train-departure=oakhaven) inform(train-destination=milbury)"))
    assert len(state.domains["train"].matches) == 3
    assert set(state.domains["train"].missing) == {"arriveBy", "leaveAt"}


@pytest.mark.parametrize(
    ("times", "can_be_ordered"),
    [
        ("", False),
        ("inform(taxi-leaveAt=09:00)", True),
        ("inform(taxi-leaveAt=dontcare)", False),
        ("inform(taxi-leaveAt=dontcare) inform(taxi-arriveBy=dontcare)", True),
    ],
)
def test_a_taxi_needs_ends_and_a_time(times, can_be_ordered):
    state = after(("", f"inform(taxi-departure=a) inform(taxi-destination=b) {times}")).domains["taxi"]
    assert (state.order is not None) is can_be_ordered


BOOKING = "inform(hotel-book stay=1) inform(hotel-book day=friday) inform(hotel-book people=2)"


def test_a_booking_needs_all_its_slots_and_an_entity():
    state = after(("", "inform(hotel-area=north) inform(hotel-book stay=1)")).domains["hotel"]
    assert (state.order, state.missing_booking) == (None, ["day", "people"])
    state = after(("", f"inform(hotel-area=north) {BOOKING}")).domains["hotel"]
    assert state.order == (0, (("stay", "1"), ("day", "friday"), ("people", "2")))
    assert after(("", f"inform(hotel-stars=9) {BOOKING}")).domains["hotel"].order is None


def test_what_is_booked_is_booked_until_something_changes():
    booked = ("offerbooked(hotel-name=granite house) offerbooked(hotel-ref=a1)", "reqmore()")
    begun = ("", f"inform(hotel-area=north) {BOOKING}")
    assert after(begun, booked).domains["hotel"].is_booked
    assert not after(begun, booked, ("", "inform(hotel-book day=monday)")).domains["hotel"].is_booked
    assert not after(begun, booked, ("", "inform(hotel-area=south)")).domains["hotel"].is_booked


def test_refused_and_declined_bookings():
    refused = ("nobook(hotel-book day=friday)", "reqmore()")
    assert after(("", BOOKING), refused).domains["hotel"].refused
    assert not after(("", BOOKING), refused, ("", "inform(hotel-book day=monday)")).domains["hotel"].refused
    assert after(("", "inform(hotel-book day=dontcare)")).domains["hotel"].declined


ORDER = (2, (("stay", "1"), ("day", "friday")))


def test_a_booking_is_written_down_under_its_reference():
    desk = BookingDesk(Random(0), {})
    first, second = desk.book("hotel", ORDER, {}), desk.book("hotel", ORDER, {})
    assert desk.bookings == [first, second]
    assert re.fullmatch("[a-z0-9]{8}", first.reference)
    assert first.reference != second.reference
    assert first.as_dict() | {"reference": ""} == {
        **{"domain": "hotel", "reference": "", "entity": 2, "slots": {"stay": "1", "day": "friday"}, "made": {}}
    }


def test_a_taxi_is_made_when_it_is_ordered():
    made = BookingDesk(Random(0), {}).book("taxi", (None, ()), {"colour": ("teal",), "type": ("rover", "comet")}).made
    assert made["car type"] in ("teal rover", "teal comet")
    assert re.fullmatch("[0-9]{10}", made["phone"])


def test_what_is_refused_is_not_written_down():
    desk = BookingDesk(Random(0), {"hotel": {"day": "friday", "stay": "1"}})
    assert desk.book("hotel", ORDER, {}) is None
    assert desk.bookings == []
    assert desk.book("hotel", (2, (("stay", "1"), ("day", "monday"))), {}) is not None
