import pytest

from rlhf_dialog.task_oriented.world.acts import parse_acts
from rlhf_dialog.task_oriented.world.multi_domain.state import Booking
from rlhf_dialog.task_oriented.world.multi_domain.success import evaluate
from tests.parts.small_world import multi_goal, small_world

WORLD = small_world()
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


def test_a_goal_that_nothing_fulfils_yet_is_not_reached():
    goal = {"hotel": {**ASKED["hotel"], "fail_info": {"area": "north", "stars": "9"}}}
    assert not outcome(goal, f"{OFFER} {PHONE} {STARS}").success


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


def test_answers_are_about_what_was_booked():
    goal = {"hotel": {"info": {"area": "north"}, "requests": ["phone"], "book": SLOTS}}
    other = "recommend(hotel-name=granite house) inform(hotel-phone=06660)"
    assert not outcome(goal, OFFER, other, bookings=[booking(2)]).success
    assert outcome(goal, f"{OFFER} {PHONE}", other, bookings=[booking(2)]).success


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


def test_the_ends_of_a_journey_do_not_count_for_the_book_rate():
    first = WORLD.services["train"].entities[0]  # on Monday at 8:15
    info = {slot: first[slot] for slot in ("departure", "destination")} | {"day": "friday", "leaveAt": "07:15"}
    goal = {"train": {"info": info, "book": {"people": "2"}}}
    assert outcome(goal, bookings=[booking(0, "train", {"people": "2"})]).book_rate == 0.5


def test_the_measures_are_of_all_domains_together():
    found = outcome(
        ASKED | BOOKED | TAXI | {"police": {"requests": ["phone", "address"]}},
        SAID,
        "inform(police-name=old guard house) inform(police-phone=0999)",
        bookings=[booking(None, "taxi", TAXI["taxi"]["info"], **CAR)],
    )
    assert (found.success, found.recall, found.precision) == (False, 3 / 4, 1.0)
    assert found.book_rate == 0.5  # the taxi, but no room
