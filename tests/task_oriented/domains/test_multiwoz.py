"""MultiWOZ's files: what is read of them, and what each of them may get wrong."""

import json
import re

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import MultiDomain, open_domain
from tests.parts.small_world import REAL, goal_model, needs_multiwoz, ontology, small_world, tables, write_world


def test_tables_and_goal_model_are_services():
    domain = small_world()
    assert (domain.name, list(domain.services)) == (
        "multiwoz",
        ["attraction", "hospital", "hotel", "police", "restaurant", "taxi", "train"],
    )
    restaurant, taxi = domain.services["restaurant"], domain.services["taxi"]
    assert (restaurant.key, len(restaurant.entities), list(restaurant.booking)) == (
        "name",
        6,
        ["time", "day", "people"],
    )
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


def model_with(change):
    model = goal_model()
    change(model)
    return model


def values(model, domain):
    return model["ind_slot_value_dist"][domain]["info"]


WRONG = {
    "no goal model": (
        {"goals": None},
        r"has no new_goal_model\.json or goal_model\.json; name the folder of MultiWOZ's db/",
    ),
    "no ontology": ({"ontology": None}, r"has no ontology\.json; name the folder"),
    "no table": (
        {"hotel": None},
        r"db/hotel_db\.json: is missing, but .*new_goal_model\.json has goals of the domain hotel",
    ),
    "broken JSON": ({"hotel": "[{"}, r"hotel_db\.json: cannot be read as JSON: "),
    "an odd table": ({"hotel": [1, 2]}, r"hotel_db\.json: is not a list of objects, the entities of the domain hotel"),
    "an empty table": ({"hotel": []}, r"hotel_db\.json: is not a list of objects"),
    "an odd taxi": (
        {"taxi": {"taxi_colors": ["red"]}},
        r"taxi_db\.json: 'taxi_types' is missing, or is not a list of texts",
    ),
    "an odd ontology": ({"ontology": ["hotel-area"]}, r"ontology\.json: is not MultiWOZ's ontology"),
    "an odd goal model": (
        {"goals": {"ind_slot_dist": {"hotel": 3}}},
        r"new_goal_model\.json: is not MultiWOZ's goal model",
    ),
    "shares that are text": (
        {"goals": model_with(lambda model: model["book_dist"].update(hotel="often"))},
        r"new_goal_model\.json: is not MultiWOZ's goal model",
    ),
    "an order of unknown domains": (
        {"goals": model_with(lambda model: model["domain_ordering_dist"].update({"hotel+bus": 0.1}))},
        r"domain_ordering_dist names the domain 'bus'; its domains are restaurant, hotel",
    ),
    "a slot that the ontology lacks": (
        {"ontology": {key: value for key, value in ontology().items() if key != "hotel-stars"}},
        r"new_goal_model\.json: the domain hotel has the slot 'stars', which the ontology \(.*ontology\.json\) lacks; add "
        r"'hotel-stars' to the ontology, or remove the slot here",
    ),
    "a booking's slot that the ontology lacks": (
        {"ontology": {key: value for key, value in ontology().items() if key != "hotel-book stay"}},
        r"the domain hotel has the slot 'book stay', which the ontology .* lacks",
    ),
    "a slot in a combination only": (
        {"goals": model_with(lambda model: values(model, "hotel").pop("stars"))},
        r"the domain hotel combines the slot 'stars', of which ind_slot_value_dist says nothing",
    ),
    "a constraint slot without entities": (
        {"goals": model_with(lambda model: values(model, "hotel").update(stars={"7": 0.5, "8": 0.5}))},
        r"hotel_db\.json: no entity has any of the values of the constraint slot 'stars' \(7, 8\); correct the entities, or "
        r"remove the slot from .*new_goal_model\.json",
    ),
    "trains that all leave too early": (
        {"goals": model_with(lambda model: values(model, "train").update(leaveAt={"23:00": 1.0}))},
        r"train_db\.json: no entity has any of the values of the constraint slot 'leaveAt' \(23:00\)",
    ),
    "a slot that no entity has": (
        {"hotel": [{k: v for k, v in row.items() if k != "phone"} for row in tables()["hotel"]]},
        r"hotel_db\.json: no entity has the slot 'phone', which .*new_goal_model\.json asks for",
    ),
    "a request that no taxi answers": (
        {"goals": model_with(lambda model: model["ind_slot_dist"]["taxi"]["reqt"].update(colour=1.0))},
        r"taxi_db\.json: a taxi has no slot 'colour', only car type and phone",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named_with_its_file(tmp_path, name):
    files, message = WRONG[name]
    with pytest.raises(UserError, match=message):
        open_domain("multiwoz", write_world(tmp_path, **files))


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(
        UserError, match=r"data_path '.*none': there is no such folder; give the one that holds MultiWOZ's"
    ):
        open_domain("multiwoz", tmp_path / "none")


def test_values_without_entities_are_normal(tmp_path):
    model = model_with(lambda model: values(model, "hotel").update(stars={"3": 0.5, "8": 0.5}))
    assert (
        "8" in open_domain("multiwoz", write_world(tmp_path, goals=model)).services["hotel"].constraints["stars"].shares
    )


@needs_multiwoz
def test_the_real_data():
    domain = open_domain("multiwoz", REAL)
    assert isinstance(domain, MultiDomain)
    sizes = {name: len(service.entities) for name, service in domain.services.items()}
    expected = {"restaurant": 110, "hotel": 33, "attraction": 79, "train": 2828, "hospital": 66, "police": 1, "taxi": 0}
    assert sizes == expected
    assert set(domain.services["train"].needed) == {"departure", "destination", "day"}
    assert list(domain.services["hotel"].booking) == ["stay", "day", "people"]
    assert re.fullmatch("[0-9a-f]{64}", domain.hash)
