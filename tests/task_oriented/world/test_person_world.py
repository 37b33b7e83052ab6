"""The act level with a person in the user's place."""

import pytest

from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.person_world import PersonWorld
from tests.parts.persons import typing
from tests.parts.small_domain import small_domain

TEA = small_domain()
LINES = ["green tea in the north please", "what is the phone number ?"]
ACTIONS = ["inform", "inform_byname"]


def led(lines, actions, each_answer=False, **options):
    """The steps of a dialogue in which the system takes these actions, what was shown, and the environment."""
    person, shown = typing(lines, each_answer=each_answer)
    environment = PersonWorld(TEA, person, **options)
    environment.reset(seed=3, options={"dialogue": 0})
    return [environment.step(environment.names.index(action)) for action in actions], shown, environment


def test_a_dialogue_in_words_is_worth_what_the_person_gives():
    steps, shown, environment = led([*LINES, "/reward 2", "thanks, bye", "20"], ACTIONS, show_goal=False)
    assert [step[1:4] for step in steps] == [(-1.0, False, False), (-1.0 + 2 + 20, True, False)]
    info = steps[-1][4]
    assert (info["rewards"], info["left"], info["success"]) == ([None, 2.0, 20.0], False, True)
    assert shown[0] == "Say goodbye when you are done."
    assert "> System: How about ada ? Its tea is green . Its area is north ." in shown
    assert any("phone number is 11" in line for line in shown)
    assert environment.user_acts[0] == [Act("inform", "tea", "green"), Act("inform", "area", "north")]


def test_acts_may_be_typed_too_and_what_only_looks_like_them_is_words():
    _, _, environment = led(["inform(tea=green) request(phone)", "inform(colour=red)"], ["inform"])
    assert environment.user_acts == [[Act("inform", "tea", "green"), Act("request", "phone")], [Act("null")]]


def test_with_a_goal_success_is_whether_it_was_reached():
    steps, shown, _ = led([*LINES, "bye", "20"], ACTIONS)
    assert shown[0].startswith("You are looking for a cafe: ")
    assert not steps[-1][4]["success"]  # the person is satisfied with something else
    assert any(line.startswith("(not reached: ") for line in shown)


@pytest.mark.parametrize(
    ("lines", "rewards", "paid", "terminated"),
    [
        (["tea", "4", "bye", "-1"], [4.0], 3.0, None),
        (["tea", "4", "/end"], [4.0], 3.0, True),
        (["tea", "", "/quit"], [None], -1.0, False),
        (["tea"], [None], -1.0, False),
    ],
)
def test_a_reward_for_each_answer(lines, rewards, paid, terminated):
    steps, _, _ = led(lines, ["request_area"], each_answer=True)
    _, reward, ends, cut, info = steps[0]
    if terminated is None:  # the goodbye came with the answer
        assert (ends, cut) == (True, False)
    else:
        assert (ends, cut, info["left"]) == (terminated, not terminated, not terminated)
    assert (reward, info["rewards"]) == (paid, rewards)


def test_a_person_who_leaves_before_the_first_words_is_asked_for_nothing_more():
    steps, shown, _ = led([], ["inform"])
    assert steps[0][1:4] == (0.0, False, True)
    assert (steps[0][4]["rewards"], steps[0][4]["left"]) == ([], True)
    assert shown[-2:] == ["> You: ", ""]


def test_a_dialogue_that_reaches_the_turn_limit_is_rewarded():
    steps, _, _ = led(["hi", "hm", "-20"], ["reqmore"], max_turns=1)
    assert steps[0][1:4] == (-21.0, False, True)
    assert not steps[0][4]["left"]
