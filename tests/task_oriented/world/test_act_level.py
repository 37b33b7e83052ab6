import os
import subprocess
import sys
import warnings
from functools import partial
from random import Random

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import load_domain
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.built_in import build_handcrafted
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from rlhf_dialog.task_oriented.world.act_world import ActWorld, acts_from
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.goals import Goal
from rlhf_dialog.task_oriented.world.multi_domain.act_level import MultiActLevel
from rlhf_dialog.task_oriented.world.person_world import PersonWorld
from tests.parts.act_dialogues import handcrafted, many, play
from tests.parts.persons import typing
from tests.parts.small_domain import small_domain
from tests.parts.small_world import small_world
from tests.parts.strange_domains import STRANGE, strange

DOMAIN = load_domain("restaurant")


SINGLE = [{}, {"error_rate": 0.3}, {"user": "unfriendly"}, {"domain": small_domain()}]
SEVERAL = [{}, {"user": {"acts_per_turn": 1}}, {"user": {"failing_bookings": 1.0}}, {"max_turns": 3}]
MAKES = [partial(ActLevel, **arguments) for arguments in SINGLE]
MAKES += [partial(MultiActLevel, small_world(), **arguments) for arguments in SEVERAL]


@pytest.mark.parametrize("make", MAKES)
def test_gymnasium_checks_it(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(), skip_render_check=True)


def test_what_is_known_at_the_end_also_of_a_goal_of_ones_own():
    environment = ActLevel(DOMAIN, error_rate=0.15)
    total, seen, info = play(environment, handcrafted(environment), seed=1)
    assert info["turns"] == len(info["system_acts"]) == len(seen) - 1
    assert len(info["user_acts"]) == info["turns"] + 1
    assert info["user_acts"][-1] == [Act("bye")]
    assert {"goal", "first_goal", "success", "inform", "action_mask"} <= set(info)
    assert total == 20 * info["success"] - info["turns"]
    environment = ActLevel(DOMAIN)
    venue = DOMAIN.entities[0]
    goal = {"constraints": {"food": venue["food"]}, "requests": ["phone"]}
    _, _, info = play(environment, handcrafted(environment), seed=0, options={"goal": goal})
    assert info["first_goal"] == goal | {"requests": ["name", "phone"], "other_than": []}
    assert ActLevel(DOMAIN, masked=False).reset(seed=0)[1]["action_mask"].all()


@pytest.mark.parametrize("make", MAKES)
def test_a_dialogue_depends_on_seed_number_and_actions_only(make):
    """Dialogues 0 to 5 in a row, in another order, and side by side in two environments."""
    one, other = make(), make()
    in_a_row = many(one, handcrafted(one), 6, seed=5)
    for number in (4, 0, 3):
        total, seen, info = play(other, handcrafted(other), seed=5, options={"dialogue": number})
        expected_total, expected_seen, expected = in_a_row[number]
        assert total == expected_total
        assert np.array_equal(seen, expected_seen)
        assert all(info[key] == expected[key] for key in info if key != "action_mask")
    rules = build_handcrafted(PolicySpec(0, 0, domain=one.domain))
    together = run_dialogues(rules, make, 5, (1, 2), num_envs=2)
    assert [episode.info["user_acts"] for episode in together] == [
        in_a_row[number][2]["user_acts"] for number in (1, 2)
    ]


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
    for changed in (Goal({"fish tank": "large"}), Goal({}, {"fish tank": None})):
        with pytest.raises(UserError, match="'fish tank'"):
            ended_with(changed, {"constraints": {}, "requests": []})


@pytest.mark.slow
def test_another_process_has_the_same_dialogues():
    """Also with another order of sets."""
    lines = [
        "from rlhf_dialog.task_oriented.world.act_level import ActLevel",
        "from tests.parts.act_dialogues import at_random, many",
        "world = ActLevel('restaurant', 0.3)",
        "print([(total, seen.tolist(), info) for total, seen, info in many(world, at_random(world), 20)])",
    ]
    found = set()
    for seed in ("1", "2"):
        variables = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", "\n".join(lines)]
        found.add(subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout)
    assert len(found) == 1


class DictGoal(dict):
    """A goal that is a dict."""

    def copy(self):
        return DictGoal(self)

    def as_dict(self):
        return dict(self)


class Caller:
    """A user who says goodbye in its turn number `last`, counted from 0, and notes who did what."""

    def __init__(self, last):
        self.last, self.log = last, []

    def begin(self, goal, rng):
        self.goal, self.turns = goal, 0
        self.log.append(("begin", rng.random()))
        return []

    def answer(self, system_acts):
        self.turns += 1
        self.log.append(("answer", system_acts))
        return [Act("bye" if self.turns == self.last else "hello")]


class Counting(ActWorld):
    """Observations are tuples of what the world was given; a dialogue succeeds where its goal says so."""

    def __init__(self, user, **options):
        super().__init__(**options)
        self.user = user

    def _draw_goal(self, options, rng):
        self.user.log.append(("goal", rng.random()))
        return DictGoal(good=options.get("goal", True))

    def _begin(self, goal):
        self.user.log.append(("ready", dict(goal)))
        goal["seen"] = True

    def _system_turn(self, action):
        return [Act("inform", "n", str(action))]

    def _observe(self, system_acts, action, is_over):
        self.user.log.append(("observe", action))
        return (system_acts, action, is_over)

    def _verdict(self, goal):
        return {"success": goal["good"], "why": "said so"}


def test_a_dialogue_from_greeting_to_verdict():
    world = Counting(Caller(2), max_turns=5)
    assert world.reset(seed=7) == (([Act("hello")], None, False), {"dialogue": 0})
    first, second = [Act("inform", "n", "4")], [Act("inform", "n", "1")]
    assert world.step(4) == ((first, 4, False), -1.0, False, False, {"dialogue": 0})
    observation, reward, terminated, truncated, info = world.step(1)
    assert (observation, reward, terminated, truncated) == ((second, 1, True), 19.0, True, False)
    assert info == {
        "dialogue": 0,
        "goal": {"good": True, "seen": True},
        "first_goal": {"good": True},
        "user_acts": [[Act("null")], [Act("hello")], [Act("bye")]],
        "system_acts": [first, second],
        "success": True,
        "why": "said so",
        "turns": 2,
    }


def test_goal_and_user_draw_from_one_stream_and_the_user_speaks_before_the_world_looks():
    world, draws = Counting(Caller(1), max_turns=5), Random("7/0/user")
    world.reset(seed=7)
    world.step(3)
    assert world.user.log == [
        ("goal", draws.random()),
        ("ready", {"good": True}),
        ("begin", draws.random()),
        ("observe", None),
        ("answer", [Act("inform", "n", "3")]),
        ("observe", 3),
    ]


@pytest.mark.parametrize(("last", "good", "expected"), [(2, True, 79.0), (2, False, -41.0), (9, True, -41.0)])
def test_success_needs_the_goodbye(last, good, expected):
    world = Counting(Caller(last), max_turns=2, success_reward=80.0, failure_reward=-40.0)
    world.reset(seed=0, options={"goal": good})
    world.step(0)
    _, reward, terminated, truncated, info = world.step(0)
    assert (reward, terminated, truncated, info["success"]) == (expected, last == 2, last == 9, expected > 0)


def test_dialogues_are_numbered_from_the_seed_on_and_have_a_turn():
    world = Counting(Caller(1), max_turns=2)
    numbers = [world.reset(seed=3), world.reset(), world.reset(options={"dialogue": 8}), world.reset(), world.reset(3)]
    assert [info["dialogue"] for _, info in numbers] == [0, 1, 8, 9, 0]
    with pytest.raises(UserError, match="max_turns is 0"):
        Counting(Caller(1), max_turns=0)


class Odd:
    """A user of one's own who gets something wrong."""

    def __init__(self, **parts):
        vars(self).update(parts)


ODD = [None, "hello", ["hello"], (Act("hello"),), [Act("inform", "n", 3)], [Act("inform", "n", "cut \ud83d")]]


@pytest.mark.parametrize("acts", ODD)
def test_a_part_that_speaks_no_acts_is_named(acts):
    with pytest.raises(UserError, match=r"^user Odd: answer returned "):
        acts_from("user", Odd(answer=lambda heard: acts), "answer", [])


def raise_here(*heard):
    raise ValueError("no words")


def bye(*heard):
    return [Act("bye")]


@pytest.mark.parametrize(
    ("user", "said"),
    [
        (Odd(), "it has no method begin"),
        (Odd(begin=bye), "it has no method answer"),
        (Odd(begin=raise_here), r"begin raised ValueError: no words at .*test_act_level\.py:\d+$"),
        (Odd(begin=lambda goal: []), "begin raised TypeError: .*1 positional argument but 2"),
        (Odd(begin=bye, answer=bye), "its goal is None after answer"),
        (Odd(begin=bye, answer=bye, goal={}), r"its goal is \{\} after answer"),
    ],
)
def test_what_a_users_user_gets_wrong_names_class_and_method(user, said):
    user.log = []
    world = Counting(user, max_turns=2)

    def dialogue():
        world.reset(seed=0)
        world.step(0)

    with pytest.raises(UserError, match=f"^user Odd: {said}"):
        dialogue()


TEA = small_domain()


def test_a_seed_that_is_not_given_comes_from_gymnasiums_generator():
    goals = []
    for seed in (5, 5, 6):
        world = ActLevel(TEA)
        world.np_random = np.random.default_rng(seed)
        world.reset()
        goals.append((world._seed, world.first_goal))
        assert world.action_masks() is world.mask
    assert goals[0] == goals[1] != goals[2]


LINES = ["green tea in the north please", "what is the phone number ?"]
ACTIONS = ["inform", "inform_byname"]


def led(lines, actions, each_answer=False, **options):
    """The steps of a dialogue in which the system takes these actions, what was shown, and the environment."""
    person, shown = typing(lines, each_answer=each_answer)
    environment = PersonWorld(TEA, person, **options)
    environment.reset(seed=3, options={"dialogue": 0})
    return [environment.step(environment.names.index(action)) for action in actions], shown, environment


def test_a_dialogue_in_words_is_worth_what_the_person_gives_and_with_a_goal_whether_it_was_reached():
    steps, shown, environment = led([*LINES, "/reward 2", "thanks, bye", "20"], ACTIONS, show_goal=False)
    assert [step[1:4] for step in steps] == [(-1.0, False, False), (-1.0 + 2 + 20, True, False)]
    info = steps[-1][4]
    assert (info["rewards"], info["left"], info["success"]) == ([None, 2.0, 20.0], False, True)
    assert shown[0] == "Say goodbye when you are done."
    assert "> System: How about ada ? Its tea is green . Its area is north ." in shown
    assert any("phone number is 11" in line for line in shown)
    assert environment.user_acts[0] == [Act("inform", "tea", "green"), Act("inform", "area", "north")]
    # acts may be typed too, and what only looks like them is words
    _, _, environment = led(["inform(tea=green) request(phone)", "inform(colour=red)"], ["inform"])
    assert environment.user_acts == [[Act("inform", "tea", "green"), Act("request", "phone")], [Act("null")]]
    steps, shown, _ = led([*LINES, "bye", "20"], ACTIONS)
    assert shown[0].startswith("You are looking for a cafe: ")
    assert not steps[-1][4]["success"]  # the person is satisfied with something else
    assert any(line.startswith("(not reached: ") for line in shown)


@pytest.mark.parametrize(
    ("lines", "rewards", "paid", "terminated"),
    [
        (["tea", "4", "bye", "-1"], [4.0], 3.0, True),
        (["tea", "4", "/end"], [4.0], 3.0, True),
        (["tea", "", "/quit"], [None], -1.0, False),
        (["tea"], [None], -1.0, False),
    ],
)
def test_a_reward_for_each_answer(lines, rewards, paid, terminated):
    ((_, reward, ends, cut, info),), _, _ = led(lines, ["request_area"], each_answer=True)
    assert (ends, cut, info["left"]) == (terminated, not terminated, not terminated)
    assert (reward, info["rewards"]) == (paid, rewards)


def test_a_person_who_leaves_before_the_first_words_is_asked_for_nothing_more_but_at_the_turn_limit():
    steps, shown, _ = led([], ["inform"])
    assert steps[0][1:4] == (0.0, False, True)
    assert (steps[0][4]["rewards"], steps[0][4]["left"]) == ([], True)
    assert shown[-2:] == ["> You: ", ""]
    steps, _, _ = led(["hi", "hm", "-20"], ["reqmore"], max_turns=1)
    assert steps[0][1:4] == (-21.0, False, True)
    assert not steps[0][4]["left"]


@pytest.mark.slow
@pytest.mark.parametrize("name", STRANGE)
def test_the_handcrafted_policy_serves_nearly_every_user(name):
    """In `twelve slots` a user insists on a venue that it has settled on, also where a later constraint rules it out."""
    domain = strange(name)
    check_env(ActLevel(domain, 0.3), skip_render_check=True)
    for rate, share in ((0.0, 0.9 if name == "twelve slots" else 0.97), (0.3, 0.7)):
        episodes = run_dialogues(Handcrafted(domain), partial(ActLevel, domain, rate), 1, range(100))
        assert sum(episode.success for episode in episodes) / 100 >= share
