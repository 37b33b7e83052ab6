"""The episode that all worlds of acts share: its order, its numbers, its end."""

from random import Random

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.act_world import ActWorld, acts_from
from rlhf_dialog.task_oriented.world.acts import Act


class Goal(dict):
    """A goal that is a dict."""

    def copy(self):
        return Goal(self)

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
        return Goal(good=options.get("goal", True))

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


def test_dialogues_are_numbered_from_the_seed_on():
    world = Counting(Caller(1), max_turns=2)
    numbers = [world.reset(seed=3), world.reset(), world.reset(options={"dialogue": 8}), world.reset(), world.reset(3)]
    assert [info["dialogue"] for _, info in numbers] == [0, 1, 8, 9, 0]


def test_it_needs_a_turn():
    with pytest.raises(UserError, match="max_turns is 0; give 1 or more"):
        Counting(Caller(1), max_turns=0)


class Odd:
    """A user of one's own who gets something wrong."""

    def __init__(self, **parts):
        vars(self).update(parts)


ODD = [None, "hello", ["hello"], (Act("hello"),), [Act("inform", "n", 3)], [Act("inform", "n", "cut \ud83d")]]


@pytest.mark.parametrize("acts", ODD)
def test_a_part_that_speaks_no_acts_is_named(acts):
    with pytest.raises(UserError, match=r"^user Odd: answer returned .*; return a list of Act, of texts each$"):
        acts_from("user", Odd(answer=lambda heard: acts), "answer", [])


def raise_here(*heard):
    raise ValueError("no words")


@pytest.mark.parametrize(
    ("user", "said"),
    [
        (Odd(), "^user Odd: it has no method begin; define begin"),
        (Odd(begin=lambda goal, rng: []), "^user Odd: it has no method answer; define begin"),
        (Odd(begin=raise_here), r"^user Odd: begin raised ValueError: no words at .*test_act_world\.py:\d+$"),
        (Odd(begin=lambda goal: []), "^user Odd: begin raised TypeError: .*1 positional argument but 2"),
        (
            Odd(begin=lambda *_: [], answer=lambda acts: [Act("bye")]),
            "^user Odd: its goal is None after answer; keep a G",
        ),
        (
            Odd(begin=lambda *_: [], answer=lambda acts: [Act("bye")], goal={}),
            r"^user Odd: its goal is \{\} after answer",
        ),
    ],
)
def test_what_a_users_user_gets_wrong_names_class_and_method(user, said):
    user.log = []
    world = Counting(user, max_turns=2)

    def dialogue():
        world.reset(seed=0)
        world.step(0)

    with pytest.raises(UserError, match=said):
        dialogue()
