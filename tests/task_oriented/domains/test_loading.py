import json
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


def test_a_file_of_ones_own_and_several_domains(tmp_path):
    path = tmp_path / "tea.json"
    path.write_text(json.dumps(DATA))
    assert load_domain(path).hash == small_domain().hash
    assert open_domain("multiwoz", write_world(tmp_path)).hash == small_world().hash
    assert open_domain("restaurant").hash == load_domain("restaurant").hash
    assert list(open_domain("multiwoz", tmp_path, ["hotel", "train"]).services) == ["hotel", "train"]


ENTITIES = [
    {"id": "1", "location": [52, 0], "type": "restaurant", "name": "Ada", "food": "thai", "area": "north", "phone": 1},
    {"id": "2", "location": [52, 1], "type": "restaurant", "name": "Ben", "food": "Welsh", "area": "north"},
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


def test_slots_of_camrest_come_from_the_goals_and_values_from_both_files(tmp_path):
    domain = load_domain(write(tmp_path))
    assert domain.constraints == {"food": ("greek", "thai", "welsh"), "area": ("north",)}
    assert domain.requestable == ("name", "phone", "food")
    assert domain.entity("ada")["phone"] == "1"
    assert domain.entity("ben") == {"name": "ben", "phone": "not available", "food": "welsh", "area": "north"}


@pytest.mark.parametrize(("changes", "word"), [({"goals": {}}, "ind_slot"), ({"entities": [3]}, "CamRest676")])
def test_a_folder_that_is_not_camrest(tmp_path, changes, word):
    with pytest.raises(UserError, match=word):
        load_domain(write(tmp_path, **changes))
