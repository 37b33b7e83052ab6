from collections import Counter
from random import Random

import pytest
from small_world import REAL, goal_model, needs_multiwoz, small_world, write_world

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import MultiDomain, open_domain
from rlhf_dialog.task_oriented.domains.services import Chances
from rlhf_dialog.task_oriented.world.multi_domain.goals import DAYS, Wish, _another_booking, draw_goal, goal_of

WORLD = small_world()


def goals(number, domain=WORLD, **arguments):
    return [draw_goal(domain, Random(f"{n}"), **arguments) for n in range(number)]


DRAWN = goals(1500)


def test_a_goal_depends_on_its_stream_only():
    assert [goal.as_dict() for goal in goals(30)] == [goal.as_dict() for goal in DRAWN[:30]]
    assert len({str(goal.as_dict()) for goal in DRAWN[:100]}) > 80


def test_domains_come_in_the_orders_of_the_goal_model():
    shares = {tuple(key.split("+")): share for key, share in goal_model()["domain_ordering_dist"].items() if key}
    counts = Counter(tuple(goal.wishes) for goal in DRAWN)
    counts[("hotel", "train")] += counts.pop(("hotel",), 0)  # no train on the day of the room: no wish for one
    for order, share in shares.items():
        assert counts[order] / 1500 == pytest.approx(share, abs=0.04)


def test_slots_requests_and_bookings_have_their_shares():
    """Combinations 3 : 1 : 1; a request that is also a constraint is left out; a wish without request and booking is drawn
    again, so the shares are conditional."""
    wishes = [goal.wishes["restaurant"] for goal in DRAWN if next(iter(goal.wishes)) == "restaurant"]
    sets = Counter("+".join(sorted(wish.info)) for wish in wishes)
    assert sets["area+food+pricerange"] / len(wishes) == pytest.approx(0.6, abs=0.06)
    assert all("food" not in wish.requests for wish in wishes if "food" in wish.info)
    nothing = 0.5 * 0.7 * 0.6 * 0.5  # phone, postcode, address, booking: none of them
    assert sum("phone" in wish.requests for wish in wishes) / len(wishes) == pytest.approx(
        0.5 / (1 - nothing), abs=0.06
    )
    assert sum(bool(wish.book) for wish in wishes) / len(wishes) == pytest.approx(0.5 / (1 - nothing), abs=0.06)


def test_a_goal_can_be_reached():
    for name, wish in (wish for goal in DRAWN[:200] for wish in goal.wishes.items()):
        service = WORLD.services[name]
        assert wish.requests or wish.book
        assert not set(wish.requests) & set(wish.info)
        assert set(wish.book) in (set(), set(service.booking))
        if service.entities:
            assert service.matching(wish.info)
        if wish.fail_info:
            assert not service.matching(wish.fail_info)
            assert sum(wish.fail_info[slot] != value for slot, value in wish.info.items()) == 1
        if name in ("train", "taxi"):
            assert ("arriveBy" in wish.info) != ("leaveAt" in wish.info)
            assert wish.info["departure"] != wish.info["destination"]


def test_some_goals_fail_at_first():
    assert sum(any(wish.fail_info for wish in goal.wishes.values()) for goal in DRAWN) > 5
    assert not any("train" in goal.wishes and goal.wishes["train"].fail_info for goal in DRAWN)


def test_a_taxi_goes_between_the_places_before_it():
    taxis = [goal.wishes for goal in DRAWN if list(goal.wishes) == ["restaurant", "hotel", "taxi"]]
    assert all(wishes["taxi"].follows == {"departure": "restaurant", "destination": "hotel"} for wishes in taxis)
    alone = [goal.wishes["taxi"] for goal in DRAWN if list(goal.wishes) == ["taxi"]]
    assert len(alone) > 20
    assert not any(wish.follows for wish in alone)


def test_a_taxi_reaches_a_booked_table_in_time():
    model = [goal for goal in goals(300, _with_order("restaurant", "taxi")) if goal.wishes["restaurant"].book]
    assert len(model) > 50
    for goal in model:
        assert goal.wishes["taxi"].info["arriveBy"] == goal.wishes["restaurant"].book["time"]
        assert "leaveAt" not in goal.wishes["taxi"].info


def _with_order(*names):
    return MultiDomain("small", WORLD.services, Chances({names: 1.0}))


def test_a_room_and_a_table_are_for_the_same_day():
    pairs = [goal.wishes for goal in goals(300, _with_order("restaurant", "hotel"))]
    both = [w for w in pairs if w["restaurant"].book and w["hotel"].book]
    assert len(both) > 60
    assert all(w["restaurant"].book["day"] == w["hotel"].book["day"] for w in both)
    same = sum(w["restaurant"].book["people"] == w["hotel"].book["people"] for w in both) / len(both)
    assert same == pytest.approx(0.5 + 0.5 / 3, abs=0.12)  # three numbers of people


def test_a_train_fits_the_nights_of_the_room():
    found = [goal.wishes for goal in DRAWN if list(goal.wishes) == ["hotel", "train"] and goal.wishes["hotel"].book]
    assert len(found) > 20
    for wishes in found:
        room, train = wishes["hotel"].book, wishes["train"].info
        if train["destination"] == "cambridge":
            assert train["day"] == room["day"]
        elif train["departure"] == "cambridge":
            assert train["day"] == DAYS[(DAYS.index(room["day"]) + int(room["stay"])) % 7]


def test_bookings_that_are_refused_first():
    assert not any(wish.fail_book for goal in DRAWN for wish in goal.wishes.values())
    drawn = goals(200, failing_bookings=1.0)
    books = [wish for goal in drawn for wish in goal.wishes.values() if wish.book]
    assert all(sum(wish.fail_book[slot] != value for slot, value in wish.book.items()) == 1 for wish in books)


@pytest.mark.parametrize(
    ("book", "others"),
    [
        ({"day": "monday"}, ["sunday"]),
        ({"time": "23:30"}, ["00:30"]),
        ({"stay": "2"}, ["3"]),
        ({"seat": "window"}, []),
    ],
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


def test_an_older_goal_model_draws_slots_one_by_one(tmp_path):
    model = goal_model()
    del model["slots_combination_dist"]
    drawn = goals(600, open_domain("multiwoz", write_world(tmp_path, goals=model)))
    sets = Counter("+".join(sorted(goal.wishes["hotel"].info)) for goal in drawn if "hotel" in goal.wishes)
    assert {"area+stars", "area+parking+stars", "stars", "name"} <= set(sets)
    assert not any("name" in slots and "+" in slots for slots in sets)


def test_a_goal_of_ones_own():
    data = {
        "hotel": {"info": {"area": "North"}, "requests": ["phone"], "book": {"stay": 1, "day": "friday", "people": "2"}}
    }
    wish = goal_of(WORLD, data).wishes["hotel"]
    assert (wish.info, wish.requests, wish.book["stay"]) == ({"area": "north"}, {"phone": None}, "1")
    assert goal_of(WORLD, data).as_dict() == {
        "hotel": {
            "info": {"area": "north"},
            "requests": ["phone"],
            "book": {"stay": "1", "day": "friday", "people": "2"},
        }
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "goal None: is not a goal"),
        ({"hotell": {}}, "there is no domain 'hotell'; did you mean 'hotel'"),
        ({"hotel": []}, "goal, domain hotel: is not a wish"),
        (
            {"hotel": {"reqt": ["phone"]}},
            "goal, domain hotel: is not a wish; give an object with info, fail_info, requests",
        ),
        ({"hotel": {"info": {"food": "thai"}}}, "goal, domain hotel: 'food' is not a slot of info"),
        ({"hotel": {"requests": ["fone"]}}, "'fone' is not a slot of requests; did you mean 'phone'"),
        ({"hotel": {"info": {"area": "moon"}}}, "goal, domain hotel: nothing fulfils {'area': 'moon'}; change a value"),
        ({"hotel": {"book": {"day": "friday"}}}, "goal, domain hotel: book lacks stay, people"),
        ({"police": {"book": {"day": "friday"}}}, "'day' is not a slot of book. Use none"),
    ],
)
def test_what_is_wrong_with_it_is_named(data, message):
    with pytest.raises(UserError, match=message):
        goal_of(WORLD, data)


def test_a_wish_that_is_done():
    wish = Wish({}, requests={"phone": None}, book={"day": "friday"})
    assert not wish.done
    wish.requests["phone"] = "1"
    assert not wish.done
    wish.booked = "a1"
    assert wish.done


@needs_multiwoz
def test_goals_of_the_real_data_have_the_shares_of_the_goal_model():
    domain = open_domain("multiwoz", REAL)
    drawn = goals(2000, domain)
    total = sum(domain.orders.shares.values())
    counts = Counter(tuple(goal.wishes) for goal in drawn)
    for order in (("restaurant",), ("hotel",), ("attraction", "hotel", "taxi")):
        assert counts[order] / 2000 == pytest.approx(domain.orders.shares[order] / total, abs=0.02)
    hotels = [goal.wishes["hotel"].info for goal in drawn if "hotel" in goal.wishes]
    assert sum("name" in info for info in hotels) / len(hotels) == pytest.approx(
        0.185, abs=0.04
    )  # its share in the model
