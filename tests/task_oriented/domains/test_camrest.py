import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import load_domain

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
