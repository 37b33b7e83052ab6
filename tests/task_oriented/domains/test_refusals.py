import json
from collections import Counter
from random import Random

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import load_domain, open_domain
from rlhf_dialog.task_oriented.domains.services import Chances, meets
from tests.parts.small_domain import DATA
from tests.parts.small_world import goal_model, ontology, small_world, tables, write_world

ADA, *OTHERS = DATA["entities"]
NO_NAME = {slot: value for slot, value in ADA.items() if slot != "name"}


def entities(**changes):
    return {"entities": [ADA | changes, *OTHERS]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": None}, ("name", "valid string")),
        ({"constraints": []}, ("constraints",)),
        ({"constraints": {"tea": "green"}}, ("constraints.tea",)),
        ({"requestable": [1]}, ("requestable.0",)),
        ({"entities": [NO_NAME]}, ("entity 1", "no name")),
        (entities(phone=7), ("entities.0.phone",)),
        (entities(fone="7"), ("entity 1 (ada)", "'fone'", "'phone'")),
        ({"constraints": {}}, ("'tea'",)),
        ({"constraints": {}, "requestable": ["tea", "area", "phone", "hours"]}, ("no constraint slot",)),
        ({"entities": []}, ("no entity",)),
        (entities(name="ben"), ("several entities", "'ben'")),
        (entities(name="None"), ("'none'",)),
        (entities(name="dontcare"), ("'dontcare'",)),
        ({"constraints": DATA["constraints"] | {"name": ["ada"]}}, ("the slot 'name'",)),
        ({"constraints": DATA["constraints"] | {" ": ["a"]}}, ("the slot ' '",)),
        ({"constraints": {"tea": ["mint"], "area": ["north"]}}, ("'tea'", "mint")),
        ({"constraints": {"tea": [], "area": ["north"]}}, ("'tea'", "it has none")),
    ],
)
def test_our_own_json(tmp_path, changes, words):
    path = tmp_path / "tea.json"
    path.write_text(json.dumps(DATA | changes), encoding="utf-8")
    with pytest.raises(UserError) as raised:
        load_domain(path)
    assert [word for word in (str(path), *words) if word not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("files", "name", "words"),
    [
        ({}, "restorant", ("restorant", "'restaurant'")),
        ({"a.json": "{"}, "a.json", ("a.json: cannot be read",)),
        ({"a.json": "[" * 100_000}, "a.json", ("a.json", "nested too deeply")),
        ({}, "", ("-rules.json", "found 0")),
        ({"a-rules.json": "{}", "b-rules.json": "{}"}, "", ("found 2",)),
    ],
)
def test_what_cannot_be_found_or_read(tmp_path, monkeypatch, files, name, words):
    monkeypatch.chdir(tmp_path)
    for file, text in files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as raised:
        load_domain(name or tmp_path)
    assert [word for word in words if word not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("multiwoz",), ("multiwoz", "data_path is missing")),
        (("multiwoz", "{folder}/none"), ("none/new_goal_model.json",)),
        (("restaurant", "{folder}"), ("data_path", "'restaurant'")),
        (("restaurant", None, ["hotel"]), ("domains", "'restaurant'")),
        (("multiwoz", "{folder}", ["hotels"]), ("'hotels'", "'hotel'")),
        (("multiwoz", "{folder}", []), ("no user wants any",)),
    ],
)
def test_arguments_that_do_not_fit_the_domain(tmp_path, arguments, words):
    write_world(tmp_path)
    given = [x.format(folder=tmp_path) if isinstance(x, str) else x for x in arguments]
    with pytest.raises(UserError) as raised:
        open_domain(*given)
    assert [word for word in words if word not in str(raised.value)] == []


def model(change):
    goals = goal_model()
    change(goals)
    return {"goals": goals}


def values(domain, **slots):
    """A goal model in which users want these values of the slots (None: the slot has no values)."""

    def change(goals):
        info = goals["ind_slot_value_dist"][domain]["info"]
        for slot, own in slots.items():
            info.update({slot: dict.fromkeys(own, 0.5)}) if own else info.pop(slot)

    return model(change)


def without(slot):
    return {"ontology": {key: value for key, value in ontology().items() if key != slot}}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"goals": None}, ("new_goal_model.json", "No such file")),
        ({"ontology": None}, ("ontology.json", "No such file")),
        ({"hotel": None}, ("hotel_db.json", "No such file")),
        ({"hotel": "[{"}, ("hotel_db.json", "cannot be read")),
        ({"hotel": [1, 2]}, ("hotel_db.json", "hotel")),
        ({"hotel": []}, ("hotel_db.json", "no entity has the slot")),
        ({"taxi": {"taxi_colors": ["red"]}}, ("taxi_db.json", "taxi_types")),
        ({"ontology": [3]}, ("ontology.json",)),
        ({"goals": {"ind_slot_dist": {"hotel": 3}}}, ("new_goal_model.json", "is not MultiWOZ's")),
        (model(lambda goals: goals["book_dist"].update(hotel="often")), ("new_goal_model.json", "often")),
        (model(lambda goals: goals["domain_ordering_dist"].update({"hotel+bus": 0.1})), ("domain_ordering_dist",)),
        (model(lambda goals: goals["domain_ordering_dist"].clear()), ("domain_ordering_dist",)),
        (without("hotel-stars"), ("hotel", "'stars'", "ontology.json", "'hotel-stars'")),
        (without("hotel-book stay"), ("'book stay'",)),
        (values("hotel", stars=None), ("hotel", "combines", "stars")),
        (values("hotel", stars=["7", "8"]), ("hotel_db.json", "'stars'", "7, 8")),
        (model(lambda goals: goals["ind_slot_value_dist"]["hotel"]["info"].update(stars={"3": 0})), ("stars",)),
        (values("train", leaveAt=["23:00"]), ("train_db.json", "'leaveAt'", "23:00")),
        (
            {"hotel": [{k: v for k, v in row.items() if k != "phone"} for row in tables()["hotel"]]},
            ("hotel_db.json", "'phone'"),
        ),
        (model(lambda goals: goals["ind_slot_dist"]["taxi"]["reqt"].update(colour=1.0)), ("taxi_db.json", "colour")),
    ],
)
def test_multiwoz(tmp_path, files, words):
    with pytest.raises(UserError) as raised:
        open_domain("multiwoz", write_world(tmp_path, **files))
    assert [word for word in words if word not in str(raised.value)] == []


def test_values_without_entities_are_normal(tmp_path):
    domain = open_domain("multiwoz", write_world(tmp_path, **values("hotel", stars=["3", "8"])))
    assert "8" in domain.services["hotel"].constraints["stars"].shares
    assert domain.hash != small_world().hash


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


def test_names_of_several_entities_and_what_is_needed():
    hospital, train = SERVICES["hospital"], SERVICES["train"]
    assert (hospital.key, hospital.is_named) == ("department", False)
    assert hospital.rows_that_have({"department": "bones"}) == (1, 2)
    assert SERVICES["hotel"].is_named
    first = train.entities[0]
    said = {"trainID": first["trainID"], "price": "free", "destination": first["destination"]}
    assert train.rows_that_have(said)[0] == 0
    assert len(train.rows_that_have({"trainID": "tr0"})) == 6  # 36 journeys share seven names
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


def test_tables_and_goal_model_are_services_and_the_older_one_has_no_combinations(tmp_path):
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
    model = goal_model()
    del model["slots_combination_dist"]
    write_world(tmp_path, goals=None)
    (tmp_path / "goal_model.json").write_text(json.dumps(model))
    domain = open_domain("multiwoz", tmp_path)
    assert domain.services["hotel"].combinations is None
    assert domain.services["hotel"].constrained["area"] == 0.6
