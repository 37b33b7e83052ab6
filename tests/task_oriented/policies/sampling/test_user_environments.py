"""A class of the user's own: seeds for its dialogues, limits on its calls, and one error for each thing that it gets wrong."""

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.environments import UserEnvironment, read_sizes, user_environment
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from tests.parts import own_environments

POLICY = RandomPolicy(PolicySpec(2, 2))


def test_each_dialogue_has_a_seed_of_its_own_and_the_same_one_again():
    make = user_environment("Guess", {}, None, 3)
    episodes = run_dialogues(POLICY, make, 7, range(40))
    right = [episode.observations[0, 0] for episode in episodes]
    assert 8 < sum(right) < 32
    assert [one.observations[0, 0] for one in run_dialogues(POLICY, make, 7, range(39, -1, -1), num_envs=3)] == right[
        ::-1
    ]
    assert [one.observations[0, 0] for one in run_dialogues(POLICY, make, 8, range(40))] != right
    assert all(one.success == one.info["success"] for one in episodes)


def test_arguments_reach_the_class_and_everything_else_is_the_environments():
    own = UserEnvironment(own_environments.Guess, {"num_turns": 1})
    assert (own.num_turns, own.class_name, read_sizes(own)) == (1, "Guess", (2, 2))
    own.reset(seed=1, options={"dialogue": 0})
    assert own.step(1 - own.right)[2:4] == (False, True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Endless", r"Endless\.step has not ended the dialogue after 3 turns \(max_turns\)"),
        (
            "Hangs",
            r"Hangs\.step did not return within 0\.3 seconds \(step_timeout_s\); it was at \S*own_environments\.py:\d",
        ),
        ("HangsAtOnce", r"HangsAtOnce\.__init__ did not return within 0\.3 seconds"),
        ("Raises", r"Raises\.step raised KeyError: 'no such venue'\nTraceback[^$]*own_environments\.py"),
        ("Quits", r"Quits\.step raised SystemExit: 5"),
        ("FourOfFive", r"FourOfFive\.step returned \(.*return \(observation, reward, terminated, truncated, info\)"),
        (
            "Wide",
            r"Wide\.reset returned .*an observation of the shape \(2,\) of its observation_space; this one has \(3,\)",
        ),
        ("Stepless", r"Stepless: has no method step"),
    ],
)
def test_what_it_gets_wrong_names_class_and_method(name, said):
    with pytest.raises(UserError, match=said):
        Sampler(user_environment(name, {}, 0.3 if name.startswith("Hangs") else None, 3), 0, 2).sample(POLICY, 20)


def test_a_name_that_nobody_registered_and_arguments_that_do_not_fit():
    with pytest.raises(UserError, match="environment: unknown environment 'Gues'; did you mean 'Guess'"):
        user_environment("Gues", {}, None, None)
    with pytest.raises(UserError, match=r"environment: wrong arguments for Guess: .*number"):
        user_environment("Guess", {"number": 3}, None, None)


def test_an_environment_of_words_is_refused():
    with pytest.raises(UserError, match="Words: a policy that chooses acts needs an observation_space that is a Box"):
        read_sizes(UserEnvironment(own_environments.Words, {}))
