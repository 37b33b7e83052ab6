"""Any ontology works: the handcrafted policy serves its users, Gymnasium accepts it, and no word of it is taken for another."""

from functools import cache, partial

import pytest
from gymnasium.utils.env_checker import check_env
from strange_domains import STRANGE, strange

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import DONTCARE
from rlhf_dialog.task_oriented.domains.domain import check_usable, parse_domain
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted
from rlhf_dialog.task_oriented.policies.random import RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from rlhf_dialog.task_oriented.world.acts import Act

LEAST = {
    "twelve slots": 0.9
}  # a user that has settled on a venue insists on it, also where a later constraint rules it out


@cache
def served(name, rate):
    domain = strange(name)
    return run_dialogues(Handcrafted(domain), partial(ActLevel, domain, rate), 1, range(100))


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in ("twelve slots", "gaps") else pytest.mark.thorough) for x in STRANGE]
)
def test_the_handcrafted_policy_serves_nearly_every_user(name):
    check_env(ActLevel(strange(name), 0.3), skip_render_check=True)
    assert sum(episode.success for episode in served(name, 0.0)) / 100 >= LEAST.get(name, 0.97)
    assert sum(episode.success for episode in served(name, 0.3)) / 100 >= LEAST.get(name, 0.85) - 0.15


def test_a_constraint_that_cannot_be_requested_is_answered_where_the_user_wants_it_confirmed():
    """`slotN` is in no list of requestable slots, but users ask about their constraints."""
    answered = 0
    for episode in served("twelve slots", 0.0):
        info = episode.info
        for user, system in zip(info["user_acts"], info["system_acts"], strict=False):
            asked = {act.slot for act in user if act.intent in ("confirm", "request") and act.slot.startswith("slot")}
            said = {act.slot for act in system if act.intent == "inform"}
            if asked and len(system) > 1 and system[0].slot == "name" and len(said) <= 1 + len(asked):
                answered += asked <= said
    assert answered > 20


def test_the_only_value_of_a_slot_can_be_accepted():
    acts = [acts for one in served("one value, one entity", 0.0) for acts in one.info["system_acts"]]
    offers = [
        said for said in acts if said[0] == Act("inform", "name", "a") and Act("inform", "genre", "crime") in said
    ]
    assert len(offers) > 20


def test_dontcare_in_an_ontology_is_not_one_more_value():
    assert DONTCARE not in strange("odd letters").constraints["größe"]
    assert "none" in strange("odd letters").constraints["größe"]


def test_a_slot_called_type_is_what_the_user_wants_of_it_and_not_the_type_of_the_domain():
    said = {act for one in served("names of actions", 0.0) for acts in one.info["user_acts"] for act in acts}
    assert {act.value for act in said if act.slot == "type" and act.intent == "inform"} <= {"inn", "hostel", DONTCARE}


def test_an_action_is_not_taken_for_a_slot_of_that_name():
    domain = strange("names of actions")
    names = ActLevel(domain).names
    informs = [
        acts
        for one in run_dialogues(RandomPolicy(PolicySpec(1, 1)), partial(ActLevel, domain, 0.3), 1, range(30))
        for action, acts in zip(one.actions.tolist(), one.info["system_acts"], strict=True)
        if names[action] in ("inform_byname", "inform_alternatives")
    ]
    assert len(informs) > 5
    assert {(acts[0].intent, acts[0].slot) for acts in informs} == {("inform", "name")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"constraints": {"name": ["a"], "genre": ["crime"]}}, "the slot 'name' means the name of the entities"),
        ({"constraints": {"": ["a"], "genre": ["crime"]}}, "the slot '' means an answer without its slot"),
        ({"entities": [{"name": "None", "genre": "crime"}]}, "an entity has the name 'none'"),
        ({"entities": [{"name": "dontcare", "genre": "crime"}]}, "an entity has the name 'dontcare'"),
    ],
)
def test_a_word_that_means_something_else_is_named(changes, message):
    data = {"name": "x", "type": "book"} | STRANGE["one value, one entity"] | changes
    with pytest.raises(UserError, match=rf"^books\.json: {message}"):
        check_usable(parse_domain(data, "books.json"), "books.json")
