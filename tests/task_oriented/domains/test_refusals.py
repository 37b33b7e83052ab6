"""Files of domains that cannot be used: the error names the file, and what is wrong."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import load_domain, open_domain
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
