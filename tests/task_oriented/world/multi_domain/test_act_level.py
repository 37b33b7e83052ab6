import warnings
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.multi_domain.act_level import MultiActLevel
from tests.parts.act_dialogues import at_random, handcrafted, many, play, side_by_side
from tests.parts.small_world import small_world

WORLD = small_world()
VARIANTS = [{}, {"user": {"acts_per_turn": 1}}, {"user": {"failing_bookings": 1.0}}, {"max_turns": 3}]


@pytest.mark.parametrize("arguments", VARIANTS)
def test_gymnasium_checks_it(arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(MultiActLevel(WORLD, **arguments), skip_render_check=True)
    assert MultiActLevel(WORLD, **arguments).max_turns == arguments.get("max_turns", 20)


@pytest.mark.parametrize("rewards", [{}, {"end_reward": (20, 0)}])
def test_each_turn_costs_1_and_the_end_is_paid(rewards):
    success, failure = rewards.get("end_reward", (80, -40))
    environment = MultiActLevel(WORLD, **rewards)
    verdicts = set()
    for choose in (handcrafted(environment), at_random(environment)):
        for total, seen, info in many(environment, choose, 40):
            assert info["turns"] == len(info["system_acts"]) == len(seen) - 1 == len(info["user_acts"]) - 1
            assert total == (success if info["success"] else failure) - info["turns"]
            verdicts.add(info["success"])
    assert verdicts == {True, False}


@pytest.mark.parametrize("arguments", VARIANTS)
def test_a_dialogue_depends_on_seed_number_and_actions_only(arguments):
    """Dialogues in a row, alone, and side by side in two environments."""
    one, other = MultiActLevel(WORLD, **arguments), MultiActLevel(WORLD, **arguments)
    in_a_row = many(one, handcrafted(one), 6, seed=5)
    for number in (4, 0, 3):
        _, seen, info = play(other, handcrafted(other), seed=5, options={"dialogue": number})
        expected = in_a_row[number]
        assert np.array_equal(seen, expected[1])
        for key in ("user_acts", "system_acts", "bookings", "goal"):
            assert info[key] == expected[2][key]
    environments = [MultiActLevel(WORLD, **arguments) for _ in range(2)]
    turns = side_by_side(environments, handcrafted(one), 5, (1, 2))
    assert turns == [in_a_row[n][2]["user_acts"] for n in (1, 2)]


def judge(domain, info) -> bool:
    """A second evaluator: searches the tables itself, and knows nothing of the first one."""
    if not info["terminated"]:
        return False
    return all(_reached(domain.services[name], domain_goal, info) for name, domain_goal in info["goal"].items())


def _reached(service, domain_goal, info) -> bool:
    wanted, requests = domain_goal.get("fail_info", domain_goal.get("info", {})), domain_goal.get("requests", [])
    bookings = [one for one in info["bookings"] if one["domain"] == service.name]
    told = [
        [(act.slot.split("-", 1)[1], act.value) for act in turn if act.slot.split("-")[0] == service.name]
        for turn in info["system_acts"]
        if all(act.intent in ("inform", "recommend", "offerbooked") for act in turn)
    ]
    if not service.entities:
        if not bookings:
            return False
        heard = dict(pair for turn in told for pair in turn)
        slots = bookings[-1]["slots"]
        same_journey = all(value in ("dontcare", slots.get(slot)) for slot, value in wanted.items())
        return same_journey and all(heard.get(slot) == bookings[-1]["made"][slot] for slot in requests)
    names = [dict(turn).get(service.key) for turn in told]
    name = next((one for one in reversed(names) if one), None)
    rows = [row for row in service.entities if row[service.key] == name]
    if bookings:
        rows = [service.entities[bookings[-1]["entity"]]]
    about, current = [], None
    for turn, own in zip(told, names, strict=True):
        current = own or current
        about += turn if rows and current == rows[0][service.key] else []
    heard = dict(about)
    if "book" in domain_goal:
        slots = domain_goal.get("fail_book", domain_goal["book"])
        if not bookings or bookings[-1]["slots"] != slots:
            return False
    return any(_row_fits(row, wanted) and all(heard.get(slot) == row[slot] for slot in requests) for row in rows)


def _row_fits(row, wanted) -> bool:
    for slot, value in wanted.items():
        if value == "dontcare":
            continue
        late, early = slot == "arriveBy" and row[slot] > value, slot == "leaveAt" and row[slot] < value
        if late or early or (slot not in ("arriveBy", "leaveAt") and row[slot] != value):
            return False
    return True


def lying(environment):
    """Every tenth value that is said is that of another entity, or another number."""
    rng, acts = Random(3), environment.actions.acts

    def liar(name, state, desk):
        return [_lie(environment.domain, act, rng) for act in acts(name, state, desk)]

    environment.actions.acts = liar
    return handcrafted(environment)


def _lie(domain, act, rng):
    name, _, slot = act.slot.partition("-")
    if act.intent not in ("inform", "recommend", "offerbooked") or rng.random() < 0.9 or not slot or slot == "ref":
        return act
    rows = [row for row in domain.services[name].entities if slot in row]
    return replace(act, value=rng.choice(rows)[slot] if rows else "5")


@pytest.mark.parametrize("policy", [handcrafted, at_random, lying])
@pytest.mark.parametrize("arguments", VARIANTS)
def test_success_is_what_the_transcript_says(policy, arguments):
    environment = MultiActLevel(WORLD, **arguments)
    infos = [info for _, _, info in many(environment, policy(environment), 80, 2)]
    assert [info["success"] for info in infos] == [judge(WORLD, info) for info in infos]
    if policy is not handcrafted:
        assert {info["success"] for info in infos} == {True, False}


def test_a_goal_of_ones_own_and_actions_of_a_mask_can_be_said():
    environment = MultiActLevel(WORLD)
    goal = {"hotel": {"info": {"area": "north"}, "requests": ["phone"]}}
    _, _, info = play(environment, handcrafted(environment), seed=0, options={"goal": goal})
    assert (info["first_goal"], info["success"]) == (goal, True)
    for wrong in ({"hotels": {}}, {"hotel": {"area": "north"}}, ["hotel"]):
        with pytest.raises(UserError, match="requests, book"):
            environment.reset(options={"goal": wrong})
    for _, _, info in many(environment, at_random(environment), 60):
        assert all(acts != [Act("null")] for acts in info["system_acts"])
    assert MultiActLevel(WORLD, masked=False).reset(seed=0)[1]["action_mask"].all()
