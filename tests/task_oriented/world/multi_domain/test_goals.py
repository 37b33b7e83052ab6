from collections import Counter
from random import Random

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import MultiDomain, open_domain
from rlhf_dialog.task_oriented.domains.services import Chances
from rlhf_dialog.task_oriented.world.multi_domain.goals import DAYS, DomainGoal, _another_booking, draw_goal
from tests.parts.small_world import goal_model, small_world, write_world

WORLD = small_world()


def goals(number, domain=WORLD, **arguments):
    return [draw_goal(domain, Random(f"{n}"), **arguments) for n in range(number)]


DRAWN = goals(1500)


def test_a_goal_depends_on_its_stream_only_and_domains_come_in_the_orders_of_the_goal_model():
    assert [goal.as_dict() for goal in goals(30)] == [goal.as_dict() for goal in DRAWN[:30]]
    shares = {tuple(key.split("+")): share for key, share in goal_model()["domain_ordering_dist"].items() if key}
    counts = Counter(tuple(goal.by_domain) for goal in DRAWN)
    counts[("hotel", "train")] += counts.pop(("hotel",), 0)  # no train on the day of the room: no wish for one
    for order, share in shares.items():
        assert counts[order] / 1500 == pytest.approx(share, abs=0.04)


def test_slots_requests_and_bookings_have_their_shares():
    """Combinations 3 : 1 : 1; a request that is also a constraint is left out; a wish without request and booking is drawn
    again, so the shares are conditional."""
    by_domain = [goal.by_domain["restaurant"] for goal in DRAWN if next(iter(goal.by_domain)) == "restaurant"]
    sets = Counter("+".join(sorted(domain_goal.info)) for domain_goal in by_domain)
    assert sets["area+food+pricerange"] / len(by_domain) == pytest.approx(0.6, abs=0.06)
    assert all("food" not in domain_goal.requests for domain_goal in by_domain if "food" in domain_goal.info)
    nothing = 0.5 * 0.7 * 0.6 * 0.5  # phone, postcode, address, booking: none of them
    half = pytest.approx(0.5 / (1 - nothing), abs=0.06)
    assert sum("phone" in domain_goal.requests for domain_goal in by_domain) / len(by_domain) == half
    assert sum(bool(domain_goal.book) for domain_goal in by_domain) / len(by_domain) == half


def test_a_goal_can_be_reached():
    for name, domain_goal in (domain_goal for goal in DRAWN[:200] for domain_goal in goal.by_domain.items()):
        service = WORLD.services[name]
        assert domain_goal.requests or domain_goal.book
        assert not set(domain_goal.requests) & set(domain_goal.info)
        assert set(domain_goal.book) in (set(), set(service.booking))
        if service.entities:
            assert service.matching(domain_goal.info)
        if domain_goal.fail_info:
            assert not service.matching(domain_goal.fail_info)
            assert sum(domain_goal.fail_info[slot] != value for slot, value in domain_goal.info.items()) == 1
        if name in ("train", "taxi"):
            assert ("arriveBy" in domain_goal.info) != ("leaveAt" in domain_goal.info)
            assert domain_goal.info["departure"] != domain_goal.info["destination"]


def test_a_taxi_goes_between_the_places_before_it_and_reaches_a_booked_table_in_time():
    taxis = [goal.by_domain for goal in DRAWN if list(goal.by_domain) == ["restaurant", "hotel", "taxi"]]
    assert all(by_domain["taxi"].follows == {"departure": "restaurant", "destination": "hotel"} for by_domain in taxis)
    alone = [goal.by_domain["taxi"] for goal in DRAWN if list(goal.by_domain) == ["taxi"]]
    assert len(alone) > 20
    assert not any(domain_goal.follows for domain_goal in alone)
    model = [goal for goal in goals(300, _with_order("restaurant", "taxi")) if goal.by_domain["restaurant"].book]
    assert len(model) > 50
    for goal in model:
        assert goal.by_domain["taxi"].info["arriveBy"] == goal.by_domain["restaurant"].book["time"]
        assert "leaveAt" not in goal.by_domain["taxi"].info


def _with_order(*names):
    return MultiDomain("small", WORLD.services, Chances({names: 1.0}))


def test_a_restaurant_is_often_wanted_in_the_area_of_the_attraction():
    pairs = [tuple(goal.by_domain.values()) for goal in goals(600, _with_order("attraction", "restaurant"))]
    both = [(one, two) for one, two in pairs if "area" in one.info and "area" in two.info and not two.fail_info]
    assert len(both) > 100
    assert sum(one.info["area"] == two.info["area"] for one, two in both) / len(both) > 0.6


def test_a_room_a_table_and_a_train_are_for_days_that_fit():
    pairs = [goal.by_domain for goal in goals(300, _with_order("restaurant", "hotel"))]
    both = [w for w in pairs if w["restaurant"].book and w["hotel"].book]
    assert len(both) > 60
    assert all(w["restaurant"].book["day"] == w["hotel"].book["day"] for w in both)
    same = sum(w["restaurant"].book["people"] == w["hotel"].book["people"] for w in both) / len(both)
    assert same == pytest.approx(0.5 + 0.5 / 3, abs=0.12)  # three numbers of people
    pairs = [goal.by_domain for goal in DRAWN if list(goal.by_domain) == ["hotel", "train"]]
    booked = [by_domain for by_domain in pairs if by_domain["hotel"].book]
    assert len(booked) > 20
    for by_domain in booked:
        room, train = by_domain["hotel"].book, by_domain["train"].info
        if train["destination"] == "cambridge":
            assert train["day"] == room["day"]
        elif train["departure"] == "cambridge":
            assert train["day"] == DAYS[(DAYS.index(room["day"]) + int(room["stay"])) % 7]


def test_bookings_that_are_refused_first_and_a_wish_that_is_done():
    assert not any(domain_goal.fail_book for goal in DRAWN for domain_goal in goal.by_domain.values())
    drawn = goals(200, failing_bookings=1.0)
    books = [domain_goal for goal in drawn for domain_goal in goal.by_domain.values() if domain_goal.book]
    assert {sum(one.fail_book[slot] != value for slot, value in one.book.items()) for one in books} == {1}
    domain_goal = DomainGoal({}, requests={"phone": None}, book={"day": "friday"})
    assert not domain_goal.done
    domain_goal.requests["phone"] = "1"
    assert not domain_goal.done
    domain_goal.booked = "a1"
    assert domain_goal.done


@pytest.mark.parametrize(
    ("book", "others"),
    [({"day": "monday"}, ["sunday"]), ({"time": "23:30"}, ["00:30"]), ({"stay": "2"}, ["3"]), ({"seat": "window"}, [])],
)
def test_another_day_hour_or_number(book, others):
    assert list(_another_booking(book, Random(0)).values()) == others


def test_a_domain_without_goals_is_named(tmp_path):
    model = goal_model()
    model["ind_slot_dist"]["police"]["reqt"] = {"phone": 0.0}
    model["domain_ordering_dist"] = {"police": 1.0}
    domain = open_domain("multiwoz", write_world(tmp_path, goals=model))
    with pytest.raises(UserError, match="domain police: 10000 draws from the goal model found no constraints"):
        draw_goal(domain, Random(0))
