"""Dialogues in words whose system chooses from a list."""

from persons import typing

from rlhf_dialog.task_oriented.world.action_list import ActionList
from rlhf_dialog.task_oriented.world.action_list_world import ActionListWorld
from rlhf_dialog.task_oriented.world.states import StateFunction

ACTIONS = ActionList(
    [
        {"name": "hello", "sentence": "Hello .", "first": True},
        {"name": "again", "sentence": "Pardon ?"},
        {"name": "bye", "sentence": "Goodbye .", "words": ["bye"], "ends": True},
    ],
    "list",
)


def led(lines, actions, max_turns=9, each_answer=True):
    """The masks and the steps of a dialogue in which the system takes these actions, and what was shown."""
    person, shown = typing(lines, each_answer=each_answer, rewards=(-1.0, 1.0))
    environment = ActionListWorld(ACTIONS, person, StateFunction("last_turns", {"size": 32}), max_turns)
    _, info = environment.reset(seed=0, options={"dialogue": 0})
    steps = [environment.step(ACTIONS.names.index(action)) for action in actions]
    return [one["action_mask"].tolist() for one in (info, *(step[4] for step in steps))], steps, shown


def test_a_dialogue_whose_answers_are_rewarded():
    masks, steps, shown = led(["hi", "1", "what?", "", "bye then", "-0.5"], ["hello", "again", "bye"])
    assert masks[:3] == [[True, True, False], [False, True, False], [False, True, True]]
    assert [step[1:4] for step in steps] == [(1.0, False, False), (0.0, False, False), (-0.5, True, False)]
    info = steps[-1][4]
    assert (info["rewards"], info["left"], info["success"]) == ([1.0, None, -0.5], False, True)
    assert info["turns"] == [("", "hi"), ("hello", "what?"), ("again", "bye then"), ("bye", "")]
    assert shown[:2] == ["> You: ", "> System: Hello ."]
    assert "> System: Goodbye ." in shown


def test_ends_by_the_person_the_limit_and_the_day():
    _, steps, _ = led(["hi", "1", "/end"], ["hello"])
    assert steps[0][1:4] == (1.0, True, False)
    _, steps, _ = led(["hi", "1", "and?", "-1", "so?"], ["hello", "again"], max_turns=2)
    assert [step[2:4] for step in steps] == [(False, False), (False, True)]
    assert not steps[1][4]["left"]
    _, steps, _ = led(["hi", "1"], ["hello"])
    assert (steps[0][3], steps[0][4]["left"], steps[0][4]["rewards"]) == (True, True, [1.0])
    _, steps, _ = led(["hi", "1", "bye"], ["hello", "bye"])  # the day ends where the last answer would be rewarded
    assert (steps[1][2:4], steps[1][4]["left"], steps[1][4]["rewards"]) == ((False, True), True, [1.0, None])
    _, steps, _ = led([], ["hello"])
    assert (steps[0][1], steps[0][3], steps[0][4]["rewards"]) == (0.0, True, [])


def test_one_reward_for_the_whole_dialogue():
    _, steps, _ = led(["hi", "/reward 0.5", "bye", "1"], ["hello", "bye"], each_answer=False)
    assert [step[1] for step in steps] == [0.5, 1.0]
    assert steps[1][4]["rewards"] == [0.5, None, 1.0]
