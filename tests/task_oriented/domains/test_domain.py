import json
import logging
import pickle
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import product

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import DONTCARE, UNKNOWN, load_domain, open_domain
from rlhf_dialog.task_oriented.domains.domain import Domain, parse_domain
from tests.parts.small_domain import DATA, small_domain
from tests.parts.small_world import small_world, write_world


def names(entities) -> list[str]:
    return [entity["name"] for entity in entities]


def test_entities_that_fit():
    domain = small_domain()
    assert names(domain.matching({"tea": "green", "area": "north"})) == ["ada", "ben"]
    assert names(domain.matching({"tea": DONTCARE, "area": "south"})) == ["cid", "dot", "eve"]
    assert domain.matching({"tea": "white"}) == ()
    assert domain.entity("dot")["hours"] == UNKNOWN
    assert domain.entity("zoe") is None
    # values are in lower case
    domain = Domain("tea", "Cafe", {"area": ["North"]}, ["Phone"], [{"name": "Ada", "area": "NORTH"}])
    assert names(domain.matching({"area": "north"})) == ["ada"]
    assert (domain.type, domain.values("name"), domain.values("area")) == ("cafe", ("ada",), ("north",))


def test_goals_are_those_of_drawing_until_two_or_three_fit_and_slots_with_more_values_are_not_preferred():
    domain = small_domain()
    wanted = []
    for tea, area in product(*((*values, DONTCARE) for values in domain.constraints.values())):
        fits = [e for e in DATA["entities"] if tea in (e["tea"], DONTCARE) and area in (e["area"], DONTCARE)]
        wanted += [{"tea": tea, "area": area}] if len(fits) in (2, 3) else []
    goals, weights = domain.goals()
    assert sorted(map(str, goals)) == sorted(map(str, wanted))
    assert weights == pytest.approx([(n + 1) / 12 for n in range(len(goals))])  # 4 x 3 goals, equally probable
    """Of four slots three are drawn; a goal weighs the probability of its values."""
    entities = [{"name": str(n), "a": "1", "b": "1", "c": "1", "d": "1"} for n in range(2)]
    domain = Domain("x", "y", {"a": ["1"], "b": ["1"], "c": ["1"], "d": ["1", "2", "3"]}, [], entities)
    goals, weights = domain.goals()
    steps = [after - before for before, after in zip([0, *weights], weights, strict=False)]
    with_d = {round(step, 6) for goal, step in zip(goals, steps, strict=True) if "d" in goal}
    assert with_d == {round(1 / 16, 6)}
    assert {round(step, 6) for goal, step in zip(goals, steps, strict=True) if "d" not in goal} == {round(1 / 8, 6)}


def test_a_domain_without_any_goal_is_refused():
    entities = [{"name": "n", "a": "strange"}]
    assert Domain("x", "y", {"a": ["1"]}, [], entities).goals()[0] == [{"a": DONTCARE}]
    with pytest.raises(UserError, match="domain x: no entity has values"):
        Domain("x", "y", {"a": ["1"]}, [], []).goals()


def test_the_hash_knows_content_and_nothing_else():
    first, second = small_domain(), small_domain()
    first.matching({"tea": "green"})
    assert first.hash == second.hash
    assert len(first.hash) == 64
    assert pickle.loads(pickle.dumps(first)).hash == first.hash  # as a worker gets it
    other = parse_domain(DATA | {"constraints": DATA["constraints"] | {"tea": ["green", "black", "white", "red"]}}, "f")
    assert other.hash != first.hash
    assert parse_domain(DATA | {"entities": [DATA["entities"][0] | {"phone": "12"}]}, "f").hash != first.hash


def test_a_domain_is_read_again_from_its_json():
    """With an entity that lacks a slot, and a name of no entity, as PyDial's ontologies have."""
    domain = Domain("tea", "cafe", DATA["constraints"], DATA["requestable"], DATA["entities"], ["zoe", "ada"])
    again = parse_domain(json.loads(json.dumps(domain.as_json())), "tea.json")
    assert (again.hash, again.name) == (domain.hash, "tea")
    assert again.values("name") == ("zoe", "ada", "ben", "cid", "dot", "eve")
    assert (again.entities, again.requestable) == (domain.entities, domain.requestable)


def test_our_own_domain_a_file_of_ones_own_and_several_domains(tmp_path):
    domain = load_domain("restaurant")
    assert (len(domain.entities), list(domain.constraints)) == (100, ["food", "area", "pricerange"])
    assert {"name", "address", "phone", "postcode"} <= set(domain.requestable)
    for slot in domain.constraints:  # uneven, as in life
        counts = Counter(entity[slot] for entity in domain.entities)
        assert max(counts.values()) > 1.6 * min(counts.values())
    assert all(value for entity in domain.entities for value in entity.values())
    assert len({entity["phone"] for entity in domain.entities}) == 100
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


RULES = {
    "type": "cafe",
    "requestable": ["name", "phone", "hours", "area"],
    "system_requestable": ["tea", "area"],
    "informable": {**DATA["constraints"], "name": ["ada", "ben", "cid", "dot", "eve"]},
    "method": ["none"],
    "discourseAct": ["none"],
}
COLUMNS = ["id", "name", "tea", "area", "phone", "hours"]


def write_pydial(folder, rules=RULES, columns=COLUMNS, table="tea", entities=DATA["entities"]):
    (folder / "tea-rules.json").write_text(json.dumps(rules))
    (folder / "tea-dbase.db").unlink(missing_ok=True)
    with closing(sqlite3.connect(folder / "tea-dbase.db")) as connection:
        connection.execute(f"create table {table} ({', '.join(columns)})")
        for number, entity in enumerate(entities):
            row = [str(number) if column == "id" else entity.get(column) for column in columns]
            connection.execute(f"insert into {table} values ({', '.join('?' * len(row))})", row)
        connection.commit()
    return folder / "tea-rules.json"


def test_the_two_files_are_one_domain(tmp_path):
    path = write_pydial(tmp_path)
    assert load_domain(path).hash == small_domain().hash
    assert load_domain(tmp_path).hash == small_domain().hash  # the folder holds one domain
    assert load_domain(str(path)).name == "tea"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rules": {**RULES, "informable": None}}, ("tea-rules.json", "informable")),
        ({"rules": {**RULES, "system_requestable": ["tee"]}}, ("tea-rules.json, system_requestable", "'tee'")),
        ({"columns": ["id", *COLUMNS[2:]]}, ("tea-rules.json, of which tea-dbase.db", "'name'")),
        ({"rules": {**RULES, "requestable": [*RULES["requestable"], "fax"]}}, ("tea-dbase.db", "'fax'")),
        ({"table": "cafes"}, ("tea-dbase.db", "needs a table tea")),
        ({"entities": []}, ("no entity",)),
        ({"rules": {**RULES, "informable": {"tea": ["mint"], "area": ["centre"]}}}, ("tea-dbase.db", "tea, area")),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path, changes, words):
    with pytest.raises(UserError) as raised:
        load_domain(write_pydial(tmp_path, **changes))
    assert [word for word in words if word not in str(raised.value)] == []


def test_columns_that_the_rules_do_not_name_and_dead_slots_are_one_line_of_the_log(tmp_path, caplog):
    """`fax` is in no rule; nobody says `garden`; `area` has values, but none that users may want. What users only ask for,
    as `pool`, stays, as in the domains that were always read."""
    informable = {**RULES["informable"], "garden": ["0", "1"], "area": ["centre"]}
    rules = {**RULES, "informable": informable, "requestable": [*RULES["requestable"], "garden", "pool"]}
    rules["system_requestable"] = ["area", "tea", "garden"]
    with caplog.at_level(logging.INFO, logger="rlhf_dialog"):
        domain = load_domain(write_pydial(tmp_path, rules, [*COLUMNS, "fax", "garden", "pool"]))
    assert list(domain.constraints) == ["tea"]
    assert domain.requestable == ("name", "phone", "hours", "area", "pool")
    assert set(domain.entities[0]) == {"name", "phone", "hours", "area", "pool", "tea"}
    lines = [line for line in caplog.messages if "left out" in line]
    assert [line.split("tea-dbase.db: ")[1] for line in lines] == ["left out are slots without values (area, garden)"]


def test_branches_are_numbered_in_the_order_of_the_rows(tmp_path):
    names = ["Oyster Bar", "ada", "oyster bar", "ada (2)", "ada", "oyster bar", "ada"]
    rows = [{"name": name, "tea": "green", "area": "north", "phone": str(n)} for n, name in enumerate(names)]
    domain = load_domain(write_pydial(tmp_path, entities=rows))
    found = [entity["name"] for entity in domain.entities]
    assert found == ["oyster bar", "ada", "oyster bar (2)", "ada (2)", "ada (3)", "oyster bar (3)", "ada (4)"]
    assert [domain.entity(name)["phone"] for name in found] == list("0123456")
