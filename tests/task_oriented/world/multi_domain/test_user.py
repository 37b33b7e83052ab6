from random import Random

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.acts import format_acts, parse_acts
from rlhf_dialog.task_oriented.world.multi_domain.user import MultiAgendaUser
from tests.parts.small_world import multi_goal, small_world

WORLD = small_world()
HOTEL = {"hotel": {"info": {"area": "north", "stars": "4"}, "requests": ["phone", "parking"]}}
BOOKING = {"stay": "1", "day": "friday", "people": "2"}


def begin(goal, **parameters):
    """A user who has begun, and what it said."""
    user = MultiAgendaUser(WORLD, parameters or "friendly")
    return user, said(user.begin(multi_goal(goal), Random(0)))


def said(acts):
    return set(format_acts(acts).replace(") ", ")|").split("|"))


def answer(user, text):
    return said(user.answer(parse_acts(text)))


def test_it_says_what_it_wants_asks_and_leaves():
    user, first = begin(HOTEL)
    assert first == {"inform(hotel)", "inform(hotel-area=north)", "inform(hotel-stars=4)"}
    assert answer(user, "recommend(hotel-name=ivory house)") == {"request(hotel-phone)", "request(hotel-parking)"}
    assert answer(user, "inform(hotel-phone=06662)") == {"request(hotel-parking)"}
    assert answer(user, "inform(hotel-parking=yes)") == {"bye()"}


def test_at_most_four_acts_of_one_kind():
    info = {"departure": "oakhaven", "destination": "cambridge", "day": "friday", "leaveAt": "07:15"}
    user, first = begin({"train": {"info": info, "requests": ["price"]}})
    assert len(first) == 4
    assert "inform(train)" in first
    rest = answer(user, "reqmore()")
    assert len(rest) == 1
    assert first | rest == {"inform(train)", *(f"inform(train-{slot}={value})" for slot, value in info.items())}
    assert begin(HOTEL, acts_per_turn=1)[1] == {"inform(hotel)"}


def test_it_does_not_take_answers_before_it_has_said_all():
    user, _ = begin(HOTEL, acts_per_turn=1)
    answer(user, "recommend(hotel-name=ivory house) inform(hotel-phone=06662)")
    assert user.goal.by_domain["hotel"].requests["phone"] is None


@pytest.mark.parametrize(
    ("offer", "corrected"),
    [
        ("recommend(hotel-name=a) recommend(hotel-area=south)", {"inform(hotel-area=north)"}),
        ("recommend(hotel-area=south) recommend(hotel-stars=2)", {"inform(hotel-area=north)", "inform(hotel-stars=4)"}),
        ("request(hotel-stars)", {"inform(hotel-stars=4)"}),
        ("request(hotel-parking)", {"request(hotel-phone)", "request(hotel-parking)"}),  # asked by both sides
        ("request(hotel-name)", {"inform(hotel-name=dontcare)"}),
        ("bye()", {"request(hotel-phone)", "request(hotel-parking)"}),  # only the user ends a dialogue
        ("recommend(restaurant-area=south)", {"request(hotel-phone)", "request(hotel-parking)"}),  # not its business
    ],
)
def test_what_is_wrong_is_said_again_and_questions_are_answered(offer, corrected):
    user, _ = begin(HOTEL)
    found = answer(user, offer)
    assert corrected <= found
    assert len(found - corrected) in (0, 2)  # the requests wait below on the stack


def test_a_booking_that_it_does_not_want():
    """Its own questions come first."""
    user, _ = begin({**HOTEL, "police": {"requests": ["phone"]}})
    assert answer(user, "request(hotel-book day)") == {"request(hotel-phone)", "request(hotel-parking)"}
    answered = "inform(hotel-name=ivory house) inform(hotel-phone=06662) inform(hotel-parking=yes)"
    assert answer(user, answered) == {"inform(hotel-book day=dontcare)"}


def test_times_are_limits():
    info = {"departure": "oakhaven", "destination": "cambridge", "day": "friday", "leaveAt": "09:00"}
    user, _ = begin({"train": {"info": info, "requests": ["price"]}}, acts_per_turn=9)
    early = "recommend(train-trainID=tr1) recommend(train-leaveAt=08:15)"
    assert answer(user, early) == {"inform(train-leaveAt=09:00)"}
    assert answer(user, "recommend(train-trainID=tr2) recommend(train-leaveAt=13:15)") == {"request(train-price)"}


def test_answers_are_about_one_venue():
    user, _ = begin(HOTEL)
    answer(user, "recommend(hotel-name=ivory house)")
    answer(user, "inform(hotel-phone=06662)")
    assert answer(user, "recommend(hotel-name=granite house)") == {"request(hotel-phone)", "request(hotel-parking)"}


def test_it_changes_what_nothing_fulfils_or_leaves():
    goal = {"hotel": {**HOTEL["hotel"], "fail_info": {"area": "south", "stars": "4"}}}
    user, first = begin(goal)
    assert "inform(hotel-area=south)" in first
    assert answer(user, "nooffer(hotel-area=south)") == {"inform(hotel-area=north)"}
    assert answer(user, "nooffer(hotel-area=north)") == {"bye()"}


def test_a_booking_and_its_reference():
    user, _ = begin({"hotel": {"info": {"area": "north"}, "book": BOOKING}})
    wanted = {f"inform(hotel-book {slot}={value})" for slot, value in BOOKING.items()}
    assert answer(user, "recommend(hotel-name=ivory house)") == wanted
    wrong = "offerbooked(hotel-name=ivory house) offerbooked(hotel-ref=a1) offerbooked(hotel-book day=monday)"
    assert answer(user, wrong) == {"inform(hotel-book day=friday)"}
    assert answer(user, wrong.replace("monday", "friday")) == {"bye()"}
    assert user.goal.by_domain["hotel"].booked == "a1"
    answer(user, "recommend(hotel-name=granite house)")
    assert user.goal.by_domain["hotel"].booked == ""


def test_a_refused_booking_is_changed_or_the_user_leaves():
    goal = {"hotel": {"info": {"area": "north"}, "book": BOOKING, "fail_book": {**BOOKING, "day": "monday"}}}
    user, _ = begin(goal)
    assert "inform(hotel-book day=monday)" in answer(user, "recommend(hotel-name=ivory house)")
    assert answer(user, "nobook(hotel-book day=monday)") == {"inform(hotel-book day=friday)"}
    assert answer(user, "nobook(hotel-book day=friday)") == {"bye()"}


def test_it_does_not_leave_before_all_is_said():
    """What was booked may not be what it wants."""
    user, _ = begin({"hotel": {"info": {"area": "north", "stars": "4"}, "book": BOOKING}}, acts_per_turn=1)
    booked = "offerbooked(hotel-name=ivory house) offerbooked(hotel-ref=a1)"
    turns = [answer(user, booked), answer(user, booked)]
    assert set().union(*turns) == {"inform(hotel-area=north)", "inform(hotel-stars=4)"}
    assert answer(user, booked) == {"bye()"}


def test_a_taxi_goes_where_the_user_found_a_place():
    journey = {"departure": "oak hall", "destination": "the hotel", "leaveAt": "09:00"}
    hotel = {"info": {"area": "north"}, "requests": ["phone"]}
    goal = multi_goal({"hotel": hotel, "taxi": {"info": journey, "requests": ["phone"]}})
    goal.by_domain["taxi"].follows = {"destination": "hotel"}
    user = MultiAgendaUser(WORLD)
    user.begin(goal, Random(0))
    answer(user, "recommend(hotel-name=ivory house)")
    answered = answer(user, "inform(hotel-name=ivory house) inform(hotel-phone=06662)")
    assert "inform(taxi-destination=ivory house)" in answered
    assert user.goal.by_domain["taxi"].info["destination"] == "ivory house"
    assert goal.by_domain["taxi"].info["destination"] == "the hotel"  # the goal that was given is its own


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("unfriendly", "user 'unfriendly': .*friendly"),
        ({"acts": 3}, "'acts' is unknown"),
        ({"acts_per_turn": 0}, "'acts_per_turn' is 0"),
        ({"acts_per_turn": 1.5}, "'acts_per_turn' is 1.5"),
        ({"failing_bookings": 2}, "'failing_bookings' is 2"),
    ],
)
def test_parameters_that_cannot_be_used(parameters, message):
    with pytest.raises(UserError, match=message):
        MultiAgendaUser(WORLD, parameters)
