"""MultiWOZ's files become services: what they offer, and what users want of them."""

import json
from collections import Counter
from random import Random

import pytest

from rlhf_dialog.task_oriented.domains import open_domain
from rlhf_dialog.task_oriented.domains.services import Chances, meets
from tests.parts.small_world import goal_model, small_world, tables, write_world

SERVICES = small_world().services


@pytest.mark.parametrize(
    ("slot", "wanted", "value", "fits"),
    [
        *(("area", "north", "north", True), ("area", "north", "south", False), ("area", "dontcare", "south", True)),
        *(("arriveBy", "09:00", "08:59", True), ("arriveBy", "09:00", "09:01", False)),
        *(("leaveAt", "09:00", "09:01", True), ("leaveAt", "09:00", "08:59", False)),
    ],
)
def test_times_are_limits_and_other_values_are_equal(slot, wanted, value, fits):
    assert meets(slot, wanted, value) is fits


def test_what_matches_is_what_a_slow_search_finds():
    train, rng = SERVICES["train"], Random(1)
    rows = [{key: str(value).lower() for key, value in row.items()} for row in tables()["train"]]
    for _ in range(50):
        wanted = {"day": rng.choice(["monday", "friday"]), "arriveBy": rng.choice(["09:05", "12:00", "20:00"])}
        wanted |= {"departure": "oakhaven"} if rng.random() < 0.5 else {"leaveAt": "13:15", "destination": "dontcare"}
        expected = []
        for number, row in enumerate(rows):
            late = wanted["arriveBy"] < row["arriveBy"] or row["leaveAt"] < wanted.get("leaveAt", "00:00")
            is_from_there = row["departure"] == wanted.get("departure", row["departure"])
            if row["day"] == wanted["day"] and is_from_there and not late:
                expected.append(number)
        assert list(train.matching(wanted)) == expected
    assert train.matching({}) == tuple(range(36))


def test_names_of_several_entities():
    hospital, train = SERVICES["hospital"], SERVICES["train"]
    assert (hospital.key, hospital.is_named) == ("department", False)
    assert hospital.rows_that_have({"department": "bones"}) == (1, 2)
    assert SERVICES["hotel"].is_named
    first = train.entities[0]
    said = {"trainID": first["trainID"], "price": "free", "destination": first["destination"]}
    assert train.rows_that_have(said)[0] == 0
    assert len(train.rows_that_have({"trainID": "tr0"})) == 6  # 36 journeys share seven names


def test_what_is_needed_follows_from_the_shares():
    assert set(SERVICES["train"].needed) == {"departure", "destination", "day"}
    assert set(SERVICES["taxi"].needed) == {"departure", "destination"}
    assert SERVICES["hotel"].needed == ()
    assert SERVICES["hotel"].asked == ("area", "stars", "parking")


def test_chances_are_shares():
    rng = Random(0)
    counts = Counter(Chances({"a": 3, "b": 1}).draw(rng) for _ in range(4000))
    assert counts["a"] / 4000 == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model["book_dist"].update(hotel=0.6),
        lambda model: model["ind_slot_dist"]["hotel"]["reqt"].update(phone=0.5),
        lambda model: model["domain_ordering_dist"].update(hotel=0.2),
        lambda model: model["slots_combination_dist"]["hotel"]["info"].update(area=1),
    ],
)
def test_another_goal_model_is_another_hash(tmp_path, change):
    model = goal_model()
    change(model)
    assert open_domain("multiwoz", write_world(tmp_path, goals=model)).hash != small_world().hash


def test_some_of_the_services_with_the_orders_that_are_left():
    domain = small_world().only(["hotel", "restaurant"])
    assert list(domain.services) == ["hotel", "restaurant"]
    # restaurant .2, attraction+restaurant .1; hotel+train .2, attraction+hotel+taxi .1; restaurant+hotel+taxi .2
    shares = domain.orders.shares
    assert set(shares) == {("restaurant",), ("hotel",), ("restaurant", "hotel")}
    assert shares["restaurant",] == pytest.approx(0.3)
    assert shares["hotel",] == pytest.approx(0.3)
    assert shares["restaurant", "hotel"] == pytest.approx(0.2)
    assert domain.hash != small_world().hash
    assert small_world().only(list(SERVICES)).hash == small_world().hash


def test_tables_and_goal_model_are_services():
    domain = small_world()
    assert list(domain.services) == ["attraction", "hospital", "hotel", "police", "restaurant", "taxi", "train"]
    restaurant, taxi = domain.services["restaurant"], domain.services["taxi"]
    assert (restaurant.key, len(restaurant.entities)) == ("name", 6)
    assert list(restaurant.booking) == ["time", "day", "people"]
    assert restaurant.entities[0]["name"] == "the amber table"
    assert restaurant.entities[5]["phone"] == "not available"
    assert domain.services["attraction"].entities[0]["entrance fee"] == "not available"  # `?` in the table
    assert "location" not in restaurant.entities[0]
    assert (taxi.entities, taxi.made_from["taxi_types"]) == ((), ("rover", "comet"))
    assert set(domain.services["train"].constraints["leaveAt"].shares) == {"07:15", "09:00", "14:30"}
    assert ("hotel", "train") in domain.orders.shares
    assert ("",) not in domain.orders.shares


def test_the_older_goal_model_has_no_combinations(tmp_path):
    model = goal_model()
    del model["slots_combination_dist"]
    write_world(tmp_path, goals=None)
    (tmp_path / "goal_model.json").write_text(json.dumps(model))
    domain = open_domain("multiwoz", tmp_path)
    assert domain.services["hotel"].combinations is None
    assert domain.services["hotel"].constrained["area"] == 0.6
