"""Any ontology works: the handcrafted policy serves its users, Gymnasium accepts it, and no word of it is taken for another."""

from functools import cache, partial

import pytest
from gymnasium.utils.env_checker import check_env

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains.domain import check_usable, parse_domain
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from tests.parts.strange_domains import STRANGE, strange

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
