from random import Random

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.acts import format_acts, parse_acts
from rlhf_dialog.task_oriented.world.multi_domain.state import Booking
from rlhf_dialog.task_oriented.world.multi_domain.success import evaluate
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


def test_it_says_what_it_wants_asks_and_leaves_or_declines_a_booking():
    user, first = begin(HOTEL)
    assert first == {"inform(hotel)", "inform(hotel-area=north)", "inform(hotel-stars=4)"}
    assert answer(user, "recommend(hotel-name=ivory house)") == {"request(hotel-phone)", "request(hotel-parking)"}
    assert answer(user, "inform(hotel-phone=06662)") == {"request(hotel-parking)"}
    assert answer(user, "inform(hotel-parking=yes)") == {"bye()"}
    """Its own questions come first."""
    user, _ = begin({**HOTEL, "police": {"requests": ["phone"]}})
    assert answer(user, "request(hotel-book day)") == {"request(hotel-phone)", "request(hotel-parking)"}
    answered = "inform(hotel-name=ivory house) inform(hotel-phone=06662) inform(hotel-parking=yes)"
    assert answer(user, answered) == {"inform(hotel-book day=dontcare)"}


def test_at_most_four_acts_of_one_kind_and_no_answers_before_all_is_said():
    info = {"departure": "oakhaven", "destination": "cambridge", "day": "friday", "leaveAt": "07:15"}
    user, first = begin({"train": {"info": info, "requests": ["price"]}})
    assert len(first) == 4
    assert "inform(train)" in first
    rest = answer(user, "reqmore()")
    assert len(rest) == 1
    assert first | rest == {"inform(train)", *(f"inform(train-{slot}={value})" for slot, value in info.items())}
    assert begin(HOTEL, acts_per_turn=1)[1] == {"inform(hotel)"}
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


def test_times_are_limits_and_answers_are_about_one_venue():
    info = {"departure": "oakhaven", "destination": "cambridge", "day": "friday", "leaveAt": "09:00"}
    user, _ = begin({"train": {"info": info, "requests": ["price"]}}, acts_per_turn=9)
    early = "recommend(train-trainID=tr1) recommend(train-leaveAt=08:15)"
    assert answer(user, early) == {"inform(train-leaveAt=09:00)"}
    assert answer(user, "recommend(train-trainID=tr2) recommend(train-leaveAt=13:15)") == {"request(train-price)"}
    user, _ = begin(HOTEL)
    answer(user, "recommend(hotel-name=ivory house)")
    answer(user, "inform(hotel-phone=06662)")
    assert answer(user, "recommend(hotel-name=granite house)") == {"request(hotel-phone)", "request(hotel-parking)"}


def test_it_changes_what_nothing_fulfils_or_leaves_but_not_before_all_is_said():
    goal = {"hotel": {**HOTEL["hotel"], "fail_info": {"area": "south", "stars": "4"}}}
    user, first = begin(goal)
    assert "inform(hotel-area=south)" in first
    assert answer(user, "nooffer(hotel-area=south)") == {"inform(hotel-area=north)"}
    assert answer(user, "nooffer(hotel-area=north)") == {"bye()"}
    """What was booked may not be what it wants."""
    user, _ = begin({"hotel": {"info": {"area": "north", "stars": "4"}, "book": BOOKING}}, acts_per_turn=1)
    booked = "offerbooked(hotel-name=ivory house) offerbooked(hotel-ref=a1)"
    turns = [answer(user, booked), answer(user, booked)]
    assert set().union(*turns) == {"inform(hotel-area=north)", "inform(hotel-stars=4)"}
    assert answer(user, booked) == {"bye()"}


def test_a_booking_and_its_reference_and_a_refused_one():
    user, _ = begin({"hotel": {"info": {"area": "north"}, "book": BOOKING}})
    wanted = {f"inform(hotel-book {slot}={value})" for slot, value in BOOKING.items()}
    assert answer(user, "recommend(hotel-name=ivory house)") == wanted
    wrong = "offerbooked(hotel-name=ivory house) offerbooked(hotel-ref=a1) offerbooked(hotel-book day=monday)"
    assert answer(user, wrong) == {"inform(hotel-book day=friday)"}
    assert answer(user, wrong.replace("monday", "friday")) == {"bye()"}
    assert user.goal.by_domain["hotel"].booked == "a1"
    answer(user, "recommend(hotel-name=granite house)")
    assert user.goal.by_domain["hotel"].booked == ""
    goal = {"hotel": {"info": {"area": "north"}, "book": BOOKING, "fail_book": {**BOOKING, "day": "monday"}}}
    user, _ = begin(goal)
    assert "inform(hotel-book day=monday)" in answer(user, "recommend(hotel-name=ivory house)")
    assert answer(user, "nobook(hotel-book day=monday)") == {"inform(hotel-book day=friday)"}
    assert answer(user, "nobook(hotel-book day=friday)") == {"bye()"}


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
        ({"acts": 3}, "'acts' is unknown"),
        ({"acts_per_turn": 0}, "'acts_per_turn' is 0"),
        ({"acts_per_turn": 1.5}, "'acts_per_turn' is 1.5"),
        ({"failing_bookings": 2}, "'failing_bookings' is 2"),
    ],
)
def test_parameters_that_cannot_be_used(parameters, message):
    with pytest.raises(UserError, match=message):
        MultiAgendaUser(WORLD, parameters)


ASKED = {"hotel": {"info": {"area": "north"}, "requests": ["phone", "stars"]}}
SLOTS = {"stay": "1", "day": "friday", "people": "2"}
BOOKED = {"hotel": {"info": {"area": "north", "stars": "4"}, "book": SLOTS}}
TAXI = {"taxi": {"info": {"departure": "a", "destination": "b", "leaveAt": "09:00"}, "requests": ["car type", "phone"]}}


def outcome(goal, *turns, bookings=()):
    return evaluate(WORLD, multi_goal(goal), [parse_acts(turn) for turn in turns], bookings)


def booking(entity, domain="hotel", slots=SLOTS, **made):
    return Booking(domain, "a1", entity, slots, made)


OFFER, PHONE, STARS = "recommend(hotel-name=ivory house)", "inform(hotel-phone=06662)", "inform(hotel-stars=4)"


@pytest.mark.parametrize(
    ("turns", "success", "precision", "recall"),
    [
        ([f"{OFFER} {PHONE} {STARS}"], True, 1.0, 1.0),
        ([OFFER, PHONE, STARS], True, 1.0, 1.0),
        ([f"{OFFER} {PHONE}"], False, 1.0, 0.5),
        ([f"{OFFER} {PHONE} inform(hotel-stars=3)"], False, 1.0, 0.5),  # the shape is right, the value is not
        ([f"{OFFER} {STARS} inform(hotel-phone=06660)"], False, 1.0, 0.5),  # of another hotel
        ([f"{PHONE} {STARS}"], False, 0.0, 0.0),  # of no hotel
        ([f"{OFFER} {PHONE} {STARS}", "recommend(hotel-name=granite house)"], False, 0.0, 0.0),
        ([f"{OFFER} {PHONE} {STARS} inform(hotel-parking=yes)"], True, 2 / 3, 1.0),  # useless, and no harm to success
        ([f"{OFFER} {PHONE} {STARS} inform(hotel-area=north)"], True, 1.0, 1.0),  # a constraint is not useless
        ([f"{OFFER} {PHONE} {STARS} inform(police-phone=0999)"], True, 2 / 3, 1.0),  # nobody asked for the police
        ([f"recommend(hotel-name=heather house) {PHONE[:-2]}1) inform(hotel-stars=3)"], False, 1.0, 1.0),  # south
        (["recommend(hotel-name=no such house) inform(hotel-phone=1) inform(hotel-stars=4)"], False, 0.0, 0.0),
        ([f"{OFFER} inform(hotel-phone=06660) {STARS}", f"{OFFER} {PHONE}"], True, 1.0, 1.0),  # the last one counts
        ([], False, 0.0, 0.0),
    ],
)
def test_requests_are_answered_with_the_values_of_the_offer(turns, success, precision, recall):
    found = outcome(ASKED, *turns)
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    assert (found.success, found.book_rate) == (success, None)
    assert (found.precision, found.recall, found.f1) == pytest.approx((precision, recall, f1))


@pytest.mark.parametrize(
    ("bookings", "success", "book_rate"),
    [
        ([], False, 0.0),
        ([booking(2)], True, 1.0),
        ([booking(0)], False, 0.5),  # in the north, with 2 stars
        ([booking(1)], False, 0.0),
        ([booking(2, slots=SLOTS | {"people": "3"})], False, 1.0),
        ([booking(0), booking(2)], True, 1.0),  # the last one counts
        ([booking(2), booking(0)], False, 0.5),
        ([booking(2, domain="restaurant")], False, 0.0),
    ],
)
def test_what_is_booked_fits_the_goal(bookings, success, book_rate):
    found = outcome(BOOKED, OFFER, bookings=bookings)
    assert (found.success, found.book_rate) == (success, book_rate)
    assert (found.precision, found.recall, found.f1) == (None, None, None)


def test_answers_are_about_what_was_booked_and_a_goal_that_nothing_fulfils_is_not_reached():
    goal = {"hotel": {"info": {"area": "north"}, "requests": ["phone"], "book": SLOTS}}
    other = "recommend(hotel-name=granite house) inform(hotel-phone=06660)"
    assert not outcome(goal, OFFER, other, bookings=[booking(2)]).success
    assert outcome(goal, f"{OFFER} {PHONE}", other, bookings=[booking(2)]).success
    goal = {"hotel": {**ASKED["hotel"], "fail_info": {"area": "north", "stars": "9"}}}
    assert not outcome(goal, f"{OFFER} {PHONE} {STARS}").success


CAR = {"car type": "teal rover", "phone": "0123456789"}
SAID = "offerbooked(taxi-car type=teal rover) offerbooked(taxi-phone=0123456789)"


@pytest.mark.parametrize(
    ("turns", "slots", "success", "book_rate"),
    [
        ([SAID], TAXI["taxi"]["info"], True, 1.0),
        ([SAID.replace("teal", "grey")], TAXI["taxi"]["info"], False, 1.0),
        ([SAID], TAXI["taxi"]["info"] | {"destination": "c"}, False, 1.0),
        ([SAID], {"departure": "a", "destination": "b"}, False, 1.0),
        ([SAID], None, False, 0.0),
    ],
)
def test_a_taxi(turns, slots, success, book_rate):
    bookings = [] if slots is None else [booking(None, "taxi", slots, **CAR)]
    found = outcome(TAXI, *turns, bookings=bookings)
    assert (found.success, found.book_rate) == (success, book_rate)


def test_names_that_several_entities_share():
    """Two wards are called bones; trains share names, and all that is said tells them apart."""
    goal = {"hospital": {"info": {"department": "bones"}, "requests": ["phone"]}}
    for phone, success in (("08881", True), ("08882", True), ("08880", False)):
        assert outcome(goal, f"recommend(hospital-department=bones) inform(hospital-phone={phone})").success is success
    train = WORLD.services["train"]
    info = {slot: train.entities[0][slot] for slot in ("departure", "destination", "day")} | {"leaveAt": "07:15"}
    goal = {"train": {"info": info, "requests": ["price"]}}
    said = " ".join(f"recommend(train-{slot}={train.entities[0][slot]})" for slot in (*info, "trainID"))
    price, other = (train.entities[n]["price"] for n in (0, 7))  # both are called tr0
    assert outcome(goal, said, f"inform(train-trainID=tr0) inform(train-price={price})").success
    assert not outcome(goal, said, f"inform(train-trainID=tr0) inform(train-price={other})").success


def test_the_measures_are_of_all_domains_together_without_the_ends_of_a_journey():
    found = outcome(
        ASKED | BOOKED | TAXI | {"police": {"requests": ["phone", "address"]}},
        SAID,
        "inform(police-name=old guard house) inform(police-phone=0999)",
        bookings=[booking(None, "taxi", TAXI["taxi"]["info"], **CAR)],
    )
    assert (found.success, found.recall, found.precision) == (False, 3 / 4, 1.0)
    assert found.book_rate == 0.5  # the taxi, but no room
    first = WORLD.services["train"].entities[0]  # on Monday at 8:15
    info = {slot: first[slot] for slot in ("departure", "destination")} | {"day": "friday", "leaveAt": "07:15"}
    goal = {"train": {"info": info, "book": {"people": "2"}}}
    assert outcome(goal, bookings=[booking(0, "train", {"people": "2"})]).book_rate == 0.5
