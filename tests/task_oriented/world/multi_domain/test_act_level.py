import re
from random import Random

import numpy as np
import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.acts import Act, format_acts, parse_acts
from rlhf_dialog.task_oriented.world.multi_domain.act_level import MultiActLevel
from rlhf_dialog.task_oriented.world.multi_domain.actions import MultiActions, MultiLayout, action_names
from rlhf_dialog.task_oriented.world.multi_domain.state import BookingDesk, DialogueState
from tests.parts.act_dialogues import at_random, handcrafted, many, play
from tests.parts.small_world import small_world

WORLD = small_world()


@pytest.mark.parametrize("rewards", [{}, {"end_reward": (20, 0)}])
def test_each_turn_costs_1_and_the_end_is_paid(rewards):
    success, failure = rewards.get("end_reward", (80, -40))
    environment = MultiActLevel(WORLD, **rewards)
    assert environment.max_turns == 20
    verdicts = set()
    for choose in (handcrafted(environment), at_random(environment)):
        for total, seen, info in many(environment, choose, 40):
            assert info["turns"] == len(info["system_acts"]) == len(seen) - 1 == len(info["user_acts"]) - 1
            assert total == (success if info["success"] else failure) - info["turns"]
            verdicts.add(info["success"])
    assert verdicts == {True, False}


def test_a_goal_of_ones_own_and_actions_of_a_mask_can_be_said():
    environment = MultiActLevel(WORLD)
    goal = {"hotel": {"info": {"area": "north"}, "requests": ["phone"]}}
    _, _, info = play(environment, handcrafted(environment), seed=0, options={"goal": goal})
    assert (info["first_goal"], info["success"]) == (goal, True)
    for wrong in ({"hotels": {}}, {"hotel": {"area": "north"}}, ["hotel"]):
        with pytest.raises(UserError, match="requests, book"):
            environment.reset(options={"goal": wrong})
    for _, _, info in many(environment, at_random(environment), 60):
        assert all(acts != [Act("null")] for acts in info["system_acts"])
    assert MultiActLevel(WORLD, masked=False).reset(seed=0)[1]["action_mask"].all()


ACTIONS = MultiActions(WORLD)
BOOKING = "inform(hotel-book stay=1) inform(hotel-book day=friday) inform(hotel-book people=2)"
TAXI = "inform(taxi-departure=a) inform(taxi-destination=b) inform(taxi-leaveAt=09:00)"


def after(*turns):
    state = DialogueState(WORLD)
    for system, user in turns:
        state.update(parse_acts(system), parse_acts(user))
    return state


def allowed(state):
    mask = ACTIONS.mask(state)
    return {name for name, is_allowed in zip(ACTIONS.names, mask, strict=True) if is_allowed} - {"reqmore", "bye"}


def said(name, state, refused=None):
    return format_acts(ACTIONS.acts(name, state, BookingDesk(Random(0), refused or {})))


def test_a_domain_has_the_intents_that_it_can_use():
    names = action_names(WORLD)
    hotel = ["hotel_request", "hotel_recommend", "hotel_nooffer", "hotel_inform", "hotel_request_booking", "hotel_book"]
    assert [name for name in names if name.startswith("hotel")] == hotel
    found = [name for name in names if name.startswith(("police", "taxi"))]
    assert found == ["police_inform", "taxi_request", "taxi_book"]
    assert names[-2:] == ("reqmore", "bye")


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("hello()", set()),
        ("inform(hotel-area=north)", {"hotel_request", "hotel_recommend", "hotel_request_booking"}),
        ("request(police-phone)", {"police_inform"}),
        ("inform(hotel-stars=9)", {"hotel_request", "hotel_nooffer", "hotel_request_booking"}),
        (f"inform(hotel-name=ivory house) {BOOKING}", {"hotel_request", "hotel_recommend", "hotel_book"}),
        ("inform(train-day=friday)", {"train_request", "train_request_booking"}),
        ("inform(taxi-departure=a)", {"taxi_request"}),
        (TAXI, {"taxi_book"}),
    ],
)
def test_what_makes_sense(user, expected):
    state = after(("", user))
    assert allowed(state) == expected
    for name in ACTIONS.names:
        assert (said(name, state) == "null()") is (name not in expected | {"reqmore", "bye"})


SOUTH, NORTH = "inform(hotel-area=south)", "inform(hotel-area=north)"
GRANITE = "recommend(hotel-name=granite house) recommend(hotel-area=north) recommend(hotel-stars=2)"
HEATHER = "recommend(hotel-name=heather house) recommend(hotel-area=south) inform(hotel-phone=06661)"
OF_FOOD = "request(restaurant-food) request(restaurant-area) request(restaurant-pricerange)"


@pytest.mark.parametrize(
    ("user", "action", "answer"),
    [
        (f"{NORTH} inform(hotel-stars=dontcare)", "hotel_recommend", GRANITE),
        (f"{SOUTH} request(hotel-phone)", "hotel_inform", HEATHER),
        (NORTH, "hotel_request", "request(hotel-stars) request(hotel-parking)"),
        ("inform(restaurant)", "restaurant_request", OF_FOOD),
        (
            "inform(hotel-book day=friday)",
            "hotel_request_booking",
            "request(hotel-book stay) request(hotel-book people)",
        ),
        ("inform(train-day=friday)", "train_request", "request(train-destination) request(train-departure)"),
        ("inform(hotel-stars=9) inform(hotel-area=dontcare)", "hotel_nooffer", "nooffer(hotel-stars=9)"),
        (NORTH, "reqmore", "reqmore()"),
    ],
)
def test_what_an_action_says(user, action, answer):
    assert said(action, after(("", user))) == answer


def test_a_booking_says_its_reference_and_is_made_once():
    begun = ("", f"{SOUTH} {BOOKING}")
    booked = said("hotel_book", after(begun))
    assert booked.startswith(
        "offerbooked(hotel-name=heather house) offerbooked(hotel-area=south) offerbooked(hotel-ref"
    )
    assert booked.endswith("(hotel-book stay=1) offerbooked(hotel-book day=friday) offerbooked(hotel-book people=2)")
    of_offer = said("hotel_book", after(begun, ("recommend(hotel-name=heather house)", "reqmore()")))
    assert of_offer.startswith("offerbooked(hotel-name=heather house) offerbooked(hotel-ref")
    assert "hotel_book" not in allowed(after(begun, (booked, "request(hotel-phone)")))
    assert "hotel_book" in allowed(after(begun, (booked, "inform(hotel-book day=monday)")))
    refused = said("hotel_book", after(begun), {"hotel": {"stay": "1", "day": "friday", "people": "2"}})
    assert refused == "nobook(hotel-book stay=1) nobook(hotel-book day=friday) nobook(hotel-book people=2)"
    assert "hotel_book" not in allowed(after(begun, (refused, "reqmore()")))
    assert "hotel_book" in allowed(after(begun, (refused, "inform(hotel-book day=monday)")))


def test_a_taxi_comes_with_its_number_and_again_when_it_is_asked_for():
    booked = said("taxi_book", after(("", TAXI)))
    assert booked.startswith("offerbooked(taxi-car type=")
    assert booked.endswith("(taxi-departure=a) offerbooked(taxi-destination=b) offerbooked(taxi-leaveAt=09:00)")
    assert allowed(after(("", TAXI), (booked, "reqmore()"))) == set()
    assert allowed(after(("", TAXI), (booked, "request(taxi-phone)"))) == {"taxi_book"}


LAYOUT = MultiLayout(WORLD)


def seen(user, last_action=None, turn=0.0):
    """The features that are 1, and the vector."""
    state = DialogueState(WORLD)
    state.update([], parse_acts(user))
    vector = LAYOUT.encode(state, last_action, turn)
    names = {f"{name}: {feature}" for name, own in LAYOUT.places.items() for feature, n in own.items() if vector[n]}
    return names, vector


def test_what_is_known_is_one_with_requests_counts_and_the_last_domain():
    names, vector = seen("inform(hotel-area=north) inform(hotel-stars=dontcare) inform(hotel-book day=friday)")
    assert names == {
        *("hotel: current", "hotel: spoken_of", "hotel: ready", "hotel: few"),
        *("hotel: known area", "hotel: known stars", "hotel: dontcare stars", "hotel: booking day"),
    }
    assert vector.dtype == np.float32
    names, _ = seen("inform(hotel-stars=9) inform(restaurant) request(restaurant-phone)")
    assert {"hotel: none", "restaurant: current", "restaurant: asked phone", "restaurant: many"} <= names
    assert "hotel: current" not in names
    assert seen("inform(hotel-name=ivory house)")[0] >= {"hotel: one"}
    assert seen("inform(hotel)")[0] >= {"hotel: few"}  # five
    assert "train: few" not in seen("inform(train-day=friday)")[0]
    _, vector = seen("hello()", last_action=3, turn=0.25)
    assert vector[LAYOUT.last_action].tolist() == [float(n == 3) for n in range(len(LAYOUT.names))]
    assert vector[LAYOUT.turn] == 0.25
    assert not seen("hello()")[1].any()


def test_what_the_user_said_is_known():
    state = after(("", "inform(hotel) inform(hotel-area=north)"), ("", "request(restaurant-phone)"))
    assert list(state.domains) == ["hotel", "restaurant"]
    assert state.current == "restaurant"
    assert state.domains["hotel"].constraints == {"area": "north"}
    assert state.domains["hotel"].matches == (0, 2, 4)
    assert list(state.domains["restaurant"].asked) == ["phone"]
    answered = after(("", "request(hotel-phone) request(hotel-stars)"), ("inform(hotel-phone=06660)", "reqmore()"))
    assert list(answered.domains["hotel"].asked) == ["stars"]


def test_an_offer_holds_until_it_does_not_fit_and_is_not_made_again():
    asked = ("", "inform(hotel-area=north)")
    offered = ("recommend(hotel-name=ivory house)", "request(hotel-phone)")
    state = after(asked, offered)
    assert (state.domains["hotel"].offered, state.domains["hotel"].choice) == (2, 2)
    assert after(asked, offered, ("", "inform(hotel-stars=4)")).domains["hotel"].offered == 2
    changed = after(asked, offered, ("", "inform(hotel-area=south)")).domains["hotel"]
    assert (changed.offered, changed.choice) == (None, 1)
    state = after(("", SOUTH), ("recommend(hotel-name=juniper house)", "request(hotel-phone)"))
    assert said("hotel_inform", state) == "inform(hotel-name=juniper house) inform(hotel-phone=06663)"


def test_nothing_is_offered_before_the_needed_slots_are_known():
    user = "inform(train-day=friday) inform(train-departure=oakhaven)"
    state = after(("", user)).domains["train"]
    assert (state.is_ready, state.choice, state.missing) == (False, None, ["destination"])
    state = after(("", f"{user} inform(train-destination=milbury)")).domains["train"]
    assert len(state.matches) == 3
    assert set(state.missing) == {"arriveBy", "leaveAt"}
    timed = after(("", f"{user} inform(train-destination=milbury) inform(train-leaveAt=09:00)")).domains["train"]
    assert timed.missing == []


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


def test_a_booking_needs_all_its_slots_and_an_entity():
    state = after(("", "inform(hotel-area=north) inform(hotel-book stay=1)")).domains["hotel"]
    assert (state.order, state.missing_booking) == (None, ["day", "people"])
    state = after(("", f"{NORTH} {BOOKING}")).domains["hotel"]
    assert state.order == (0, (("stay", "1"), ("day", "friday"), ("people", "2")))
    assert after(("", f"inform(hotel-stars=9) {BOOKING}")).domains["hotel"].order is None


def test_what_is_booked_refused_or_declined_is_so_until_something_changes():
    booked = ("offerbooked(hotel-name=granite house) offerbooked(hotel-ref=a1)", "reqmore()")
    begun = ("", f"{NORTH} {BOOKING}")
    assert after(begun, booked).domains["hotel"].is_booked
    assert not after(begun, booked, ("", "inform(hotel-book day=monday)")).domains["hotel"].is_booked
    assert not after(begun, booked, ("", "inform(hotel-area=south)")).domains["hotel"].is_booked
    refused = ("nobook(hotel-book day=friday)", "reqmore()")
    assert after(("", BOOKING), refused).domains["hotel"].refused
    assert not after(("", BOOKING), refused, ("", "inform(hotel-book day=monday)")).domains["hotel"].refused
    declines = ("", "inform(hotel-book day=dontcare)")
    assert after(declines).domains["hotel"].declined
    assert not after(declines, ("", "inform(hotel-book day=friday)")).domains["hotel"].declined


def test_a_booking_is_written_down_under_its_reference_unless_it_is_refused():
    order, made_from = (2, (("stay", "1"), ("day", "friday"))), {"colour": ("teal",), "type": ("rover", "comet")}
    desk = BookingDesk(Random(0), {"hotel": {"day": "monday", "stay": "1"}})
    first, second = desk.book("hotel", order, {}), desk.book("hotel", order, {})
    assert desk.book("hotel", (2, (("stay", "1"), ("day", "monday"))), {}) is None
    assert desk.bookings == [first, second]
    assert re.fullmatch("[a-z0-9]{8}", first.reference)
    assert first.reference != second.reference
    expected = {"domain": "hotel", "entity": 2, "slots": {"stay": "1", "day": "friday"}, "made": {}}
    assert first.as_dict() == expected | {"reference": first.reference}
    made = desk.book("taxi", (None, ()), made_from).made
    assert made["car type"] in ("teal rover", "teal comet")
    assert re.fullmatch("[0-9]{10}", made["phone"])
