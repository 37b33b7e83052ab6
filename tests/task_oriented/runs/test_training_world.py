"""Where a policy is trained: a domain, or a class of the user's own."""

from random import Random

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.runs.training_world import environment_factory, open_person_world, open_world
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from tests.parts import own_environments
from tests.parts.policy_runs import domain_file
from tests.parts.scripted_teacher import ScriptedTeacher
from tests.parts.small_domain import small_domain

OWN = {"id": "Guess", "args": {}}


def settings(**changes):
    return {
        "domain": "restaurant",
        "error_rate": 0.3,
        "user": "unfriendly",
        "max_turns": 7,
        "environment": None,
    } | changes


def test_a_domain_and_its_user(tmp_path):
    world = open_world(settings(domain=str(domain_file(tmp_path))))
    environment = world.make()
    assert (world.name, world.hash, world.domain.hash) == ("tea", small_domain().hash, small_domain().hash)
    assert (len(world.names), world.num_features) == (environment.action_space.n, environment.layout.size)
    assert (environment.max_turns, environment.channel.error_rate) == (7, 0.3)
    assert isinstance(environment_factory(settings(), small_domain())(), ActLevel)


def test_a_class_of_the_users_own():
    world = open_world(settings(environment=OWN))
    assert (world.name, world.domain, world.num_features) == ("Guess", None, 2)
    assert list(world.names) == ["action 0", "action 1"]
    assert world.hash != open_world(settings(environment={"id": "Endless", "args": {}})).hash
    (episode,) = run_dialogues(RandomPolicy(PolicySpec(2, 2)), world.make, 0, [4])
    lines = world.transcript(episode).splitlines()
    assert lines[0] == "dialogue 4"
    assert lines[1].startswith(f"    1  action {episode.actions[0]}   [reward ")
    assert lines[-1].startswith(f"  {'success' if episode.success else 'no success'} after {len(episode)} turns")


def test_a_subclass_of_the_act_level_has_its_domain_and_its_rules():
    world = open_world(settings(environment={"id": "Hurried", "args": {"error_rate": 0.15}}))
    assert (world.name, world.domain.name) == ("restaurant", "restaurant")
    assert "inform_byname" in world.names
    (episode,) = run_dialogues(RandomPolicy(PolicySpec(2, 2)), world.make, 0, [0])
    assert "goal: " in world.transcript(episode)


def test_what_cannot_be_trained_in():
    assert own_environments.Words
    with pytest.raises(UserError, match="Words: a policy that chooses acts needs an observation_space"):
        open_world(settings(environment={"id": "Words", "args": {}}))
    with pytest.raises(UserError, match="there is no such file or folder"):
        open_world(settings(domain="nowhere"))


def test_a_list_of_actions_that_is_not_there():
    domain = {"actions": "nowhere.json", "state": {"id": "last_turns", "args": {}}}
    with pytest.raises(
        UserError, match=r"domain\.actions: there is no file 'nowhere\.json', neither here nor in configs/"
    ):
        open_person_world(settings(domain=domain), ScriptedTeacher({}, Random(0)))
