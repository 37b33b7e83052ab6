import os
import subprocess
import sys
import warnings
from functools import cache

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import load_domain
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.goals import Goal
from tests.parts.act_dialogues import at_random, handcrafted, many, play, side_by_side
from tests.parts.small_domain import small_domain

DOMAIN = load_domain("restaurant")


def mean_reward(environment, choose, number=100) -> float:
    return sum(total for total, _, _ in many(environment, choose, number)) / number


@cache
def reward_of_the_task() -> float:
    environment = ActLevel(DOMAIN, 0.3)
    return mean_reward(environment, handcrafted(environment))


@pytest.mark.parametrize("arguments", [{}, {"error_rate": 0.3}, {"user": "unfriendly"}, {"domain": small_domain()}])
def test_gymnasium_checks_it(arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(ActLevel(**arguments), skip_render_check=True)


def test_what_is_known_at_the_end():
    environment = ActLevel(DOMAIN, error_rate=0.15)
    total, seen, info = play(environment, handcrafted(environment), seed=1)
    assert info["turns"] == len(info["system_acts"]) == len(seen) - 1
    assert len(info["user_acts"]) == info["turns"] + 1
    assert info["user_acts"][-1] == [Act("bye")]
    assert {"goal", "first_goal", "success", "inform", "action_mask"} <= set(info)
    assert total == 20 * info["success"] - info["turns"]


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_a_dialogue_depends_on_seed_number_and_actions_only(rate):
    """Dialogues 0 to 5 in a row, in another order, and side by side in two environments."""
    one, other = ActLevel(DOMAIN, rate), ActLevel(DOMAIN, rate)
    in_a_row = many(one, handcrafted(one), 6, seed=5)
    for number in (4, 0, 3):
        total, seen, info = play(other, handcrafted(other), seed=5, options={"dialogue": number})
        assert (total, info["system_acts"]) == (in_a_row[number][0], in_a_row[number][2]["system_acts"])
        assert np.array_equal(seen, in_a_row[number][1])
    turns = side_by_side([ActLevel(DOMAIN, rate), ActLevel(DOMAIN, rate)], handcrafted(one), 5, (1, 2))
    assert turns == [in_a_row[number][2]["user_acts"] for number in (1, 2)]


def only(*names):
    """A policy that says these actions in turn, again and again, allowed or not."""

    def policy(environment):
        numbers = [environment.names.index(name) for name in names]
        said = iter(range(10**9))
        return lambda observation, mask: numbers[next(said) % len(numbers)]

    return policy


FARMERS = {
    "goodbye at once": only("bye"),
    "asks in circles": only("request_food", "request_area", "request_pricerange"),
    "offers at once": only("inform"),
    "informs everything": only("inform", "inform_byname", "inform_alternatives"),
    "is not understood": only("restart"),
    "at random": at_random,
}


@pytest.mark.parametrize("name", FARMERS)
def test_nothing_is_earned_but_by_doing_the_task(name):
    environment = ActLevel(DOMAIN, 0.3, masked=name == "at random")
    assert mean_reward(environment, FARMERS[name](environment)) < reward_of_the_task() - 3


class Forgetful:
    """A user who wants something else when it leaves."""

    def __init__(self, changed):
        self.changed = changed

    def begin(self, goal, rng):
        self.goal = goal
        return [Act("hello")]

    def answer(self, system_acts):
        self.goal = self.changed
        return [Act("bye")]


def ended_with(changed, first):
    environment = ActLevel(DOMAIN, user=Forgetful(changed))
    environment.reset(seed=0, options={"goal": first})
    return environment.step(environment.names.index("inform"))[-1]


def test_a_user_cannot_take_back_its_first_goal():
    """Every offer fits an empty goal, and nothing is left to be answered."""
    venue = DOMAIN.entities[-1]
    first = {"constraints": {"food": venue["food"], "name": venue["name"]}, "requests": ["phone"]}
    info = ended_with(Goal({}), first)
    assert info["success"] is False
    assert (info["goal"]["constraints"], info["goal"]["requests"]) == (first["constraints"], ["name", "phone"])
    assert ended_with(Goal({}), {"constraints": {}, "requests": []})["success"] is True


@pytest.mark.parametrize("changed", [Goal({"fish tank": "large"}), Goal({}, {"fish tank": None})])
def test_a_goal_with_a_slot_that_the_domain_lacks(changed):
    with pytest.raises(UserError, match="'fish tank'"):
        ended_with(changed, {"constraints": {}, "requests": []})


def test_a_goal_of_ones_own():
    environment = ActLevel(DOMAIN)
    venue = DOMAIN.entities[0]
    goal = {"constraints": {"food": venue["food"]}, "requests": ["phone"]}
    _, _, info = play(environment, handcrafted(environment), seed=0, options={"goal": goal})
    assert info["first_goal"] == goal | {"requests": ["name", "phone"], "other_than": []}
    assert ActLevel(DOMAIN, masked=False).reset(seed=0)[1]["action_mask"].all()


PROGRAM = """
import hashlib
from rlhf_dialog.task_oriented.world.act_level import ActLevel
environment = ActLevel("restaurant", 0.3)
text = ""
for dialogue in range(20):
    observation, info = environment.reset(seed=1, options={"dialogue": dialogue})
    for turn in range(25):
        allowed = info["action_mask"].nonzero()[0]
        observation, _, terminated, truncated, info = environment.step(allowed[turn % len(allowed)])
        text += str(observation.tolist())
        if terminated or truncated:
            break
    text += str(info)
print(hashlib.sha256(text.encode()).hexdigest())
"""


@pytest.mark.slow
def test_another_process_has_the_same_dialogues():
    """Also with another order of sets."""
    command, found = [sys.executable, "-c", PROGRAM], []
    for seed in ("1", "2"):
        variables = {**os.environ, "PYTHONHASHSEED": seed}
        found.append(subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout)
    assert len(found[0]) == 65
    assert found[0] == found[1]
