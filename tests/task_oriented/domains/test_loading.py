import json
import logging
from collections import Counter

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import load_domain, open_domain
from tests.parts.small_domain import DATA, small_domain
from tests.parts.small_world import small_world, write_world


def test_our_own_domain():
    domain = load_domain("restaurant")
    assert (len(domain.entities), list(domain.constraints)) == (100, ["food", "area", "pricerange"])
    assert {"name", "address", "phone", "postcode"} <= set(domain.requestable)
    for slot in domain.constraints:  # uneven, as in life
        counts = Counter(entity[slot] for entity in domain.entities)
        assert max(counts.values()) > 1.6 * min(counts.values())
    assert all(value for entity in domain.entities for value in entity.values())
    assert len({entity["phone"] for entity in domain.entities}) == 100


def test_values_without_entities_are_one_line_of_the_log(caplog):
    with caplog.at_level(logging.INFO, logger="rlhf_dialog"):
        load_domain("restaurant")
    assert caplog.messages == ["restaurant: without entities are 6 of 24 values of food"]


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "tea.json"
    path.write_text(json.dumps(DATA))
    assert load_domain(path).hash == small_domain().hash


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("restorant", None, "domain 'restorant': there is no such file or folder; did you mean 'restaurant'"),
        ("{folder}/a.json", "{", r"a\.json: cannot be read as JSON: "),
        ("{folder}/a.json", "[" * 100_000, r"a\.json: cannot be read as JSON: is nested too deeply"),
        ("{folder}", None, "expected one file .-rules.json .*, found neither; name a file"),
    ],
)
def test_what_cannot_be_found_or_read(tmp_path, name, text, message):
    path = name.format(folder=tmp_path)
    if text:
        (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=message):
        load_domain(path)


def test_a_folder_with_two_domains(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}-rules.json").write_text("{}")
    with pytest.raises(UserError, match=r"found 2 files of this kind: a-rules\.json, b-rules\.json; name a file"):
        load_domain(tmp_path)


def test_several_domains_have_a_folder_of_data(tmp_path):
    assert open_domain("multiwoz", write_world(tmp_path)).hash == small_world().hash
    assert open_domain("restaurant").hash == load_domain("restaurant").hash
    with pytest.raises(UserError, match="domain multiwoz: data_path is missing; give the folder with its db/"):
        open_domain("multiwoz")
    with pytest.raises(UserError, match="data_path: only the domain multiwoz has one, found domain 'restaurant'"):
        open_domain("restaurant", tmp_path)
    assert list(open_domain("multiwoz", tmp_path, ["hotel", "train"]).services) == ["hotel", "train"]
    with pytest.raises(UserError, match="domains: only multiwoz has several, found domain 'restaurant'"):
        open_domain("restaurant", names=["hotel"])


ENTITIES = [
    {"id": "1", "location": "52,0", "type": "restaurant", "name": "Ada", "food": "thai", "area": "north", "phone": "1"},
    {"id": "2", "location": "52,1", "type": "restaurant", "name": "Ben", "food": "welsh", "area": "north"},
]
GOALS = {
    "ind_slot_dist": {"info": {"food": 0.6, "area": 0.7}, "reqt": {"phone": 0.8, "food": 0.1}},
    "ind_slot_value_dist": {"info": {"food": {"thai": 0.5, "greek": 0.4, "dontcare": 0.1}, "area": {"north": 1.0}}},
}


def write(folder, entities=ENTITIES, goals=GOALS):
    (folder / "db").mkdir()
    (folder / "db" / "CamRestDB.json").write_text(json.dumps(entities))
    (folder / "goal_model.json").write_text(json.dumps(goals))
    return folder


def test_slots_come_from_the_goals_and_values_from_both_files(tmp_path):
    domain = load_domain(write(tmp_path))
    assert domain.constraints == {"food": ("greek", "thai", "welsh"), "area": ("north",)}
    assert domain.requestable == ("name", "phone", "food")
    assert domain.entity("ben") == {"name": "ben", "phone": "not available", "food": "welsh", "area": "north"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"goals": {}}, r"goal_model\.json: is not CamRest676's goal model"),
        ({"entities": {}}, r"CamRestDB\.json: is not a list of restaurants"),
        ({"entities": [{**ENTITIES[0], "fax": "2"}]}, r"CamRestDB\.json: the ontology lacks the slot 'fax'"),
        (
            {"entities": ENTITIES[1:]},
            r"goal_model\.json, of which CamRestDB\.json: the ontology lacks the slot 'phone'",
        ),
    ],
)
def test_what_is_missing_is_named_with_its_file(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        load_domain(write(tmp_path, **changes))


def test_without_goals(tmp_path):
    (write(tmp_path) / "goal_model.json").unlink()
    with pytest.raises(UserError, match=r"goal_model\.json: cannot be read as JSON"):
        load_domain(tmp_path)
