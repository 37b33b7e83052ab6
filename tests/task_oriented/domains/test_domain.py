import json
import pickle
from itertools import product

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import DONTCARE, UNKNOWN
from rlhf_dialog.task_oriented.domains.domain import Domain, parse_domain
from tests.parts.small_domain import DATA, small_domain


def names(entities) -> list[str]:
    return [entity["name"] for entity in entities]


def test_entities_that_fit():
    domain = small_domain()
    assert names(domain.matching({"tea": "green", "area": "north"})) == ["ada", "ben"]
    assert names(domain.matching({"tea": DONTCARE, "area": "south"})) == ["cid", "dot", "eve"]
    assert domain.matching({"tea": "white"}) == ()
    assert domain.entity("dot")["hours"] == UNKNOWN
    assert domain.entity("zoe") is None


def test_values_are_in_lower_case():
    domain = Domain("tea", "Cafe", {"area": ["North"]}, ["Phone"], [{"name": "Ada", "area": "NORTH"}])
    assert names(domain.matching({"area": "north"})) == ["ada"]
    assert (domain.type, domain.values("name"), domain.values("area")) == ("cafe", ("ada",), ("north",))


def test_goals_are_those_of_drawing_until_two_or_three_fit():
    domain = small_domain()
    wanted = []
    for tea, area in product(*((*values, DONTCARE) for values in domain.constraints.values())):
        fits = [e for e in DATA["entities"] if tea in (e["tea"], DONTCARE) and area in (e["area"], DONTCARE)]
        wanted += [{"tea": tea, "area": area}] if len(fits) in (2, 3) else []
    goals, weights = domain.goals()
    assert sorted(map(str, goals)) == sorted(map(str, wanted))
    assert weights == pytest.approx([(n + 1) / 12 for n in range(len(goals))])  # 4 x 3 goals, equally probable


def test_slots_with_more_values_are_not_preferred():
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
