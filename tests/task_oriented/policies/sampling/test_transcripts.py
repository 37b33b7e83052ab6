"""Dialogues of a policy as transcripts, in words and in measures."""

import math

import pytest

from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted, HandcraftedMulti, RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.in_words import PolicyInWords
from rlhf_dialog.task_oriented.policies.sampling.measures import (
    TEST_SEED,
    VALIDATION_SEED,
    compare_dialogues,
    means,
    measure_dialogues,
)
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.policies.sampling.transcripts import describe_belief, plain_transcript, transcript
from rlhf_dialog.task_oriented.runs.run import IMITATION_SEED
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from rlhf_dialog.task_oriented.world.multi_domain.act_level import MultiActLevel
from rlhf_dialog.task_oriented.world.restaurant import restaurant
from rlhf_dialog.task_oriented.world.summary import Layout
from tests.parts.small_domain import small_domain
from tests.parts.small_world import multi_goal, small_world
from tests.parts.toy_environments import Counted

WORLD = small_world()
HOTEL = {"info": {"area": "north", "stars": "4"}, "fail_info": {"area": "south", "stars": "4"}, "requests": ["phone"]}
GOAL = {"hotel": {**HOTEL, "book": {"stay": "1", "day": "friday", "people": "2"}}}


class OneGoal(MultiActLevel):
    """Every user has the goal of this file."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options={**(options or {}), "goal": multi_goal(GOAL)})


def test_a_transcript_has_goal_acts_state_rewards_bookings_and_verdict():
    (episode,) = run_dialogues(HandcraftedMulti(WORLD), lambda: OneGoal(WORLD), 0, [0])
    names = OneGoal(WORLD).names
    lines = transcript(WORLD, names, episode).splitlines()
    assert lines[0] == (
        "dialogue 0, goal: hotel (info: area=north, stars=4; fail info: area=south, stars=4; requests: phone; "
        "book: stay=1, day=friday, people=2)"
    )
    assert lines[1].startswith("  at the end, goal: hotel (info: area=north, stars=4; requests: phone; book")
    states = [line for line in lines if line.startswith("  state")]
    assert len(states) == len(episode)
    assert "stars=4; 0 fit)" in states[0]
    assert "hotel (area=north, stars=4; 1 fit; asked: phone)" in states[2].replace(
        "stars=4, area=north", "area=north, stars=4"
    )
    systems = [line for line in lines if line.startswith("  system")]
    assert [line.rpartition("[")[2].rstrip("]") for line in systems] == [names[a] for a in episode.actions]
    assert [line for line in lines if line.startswith("  user")][-1] == "  user    bye()   [reward +79]"
    reference = episode.info["bookings"][0]["reference"]
    assert lines[-2] == f"  booked  hotel {reference}: stay=1, day=friday, people=2"
    assert lines[-1] == (
        f"  success after {len(episode)} turns (the user said goodbye); reward {80 - len(episode)}; inform: precision 1.00, "
        "recall 1.00, f1 1.00, book rate 1.00"
    )


DOMAIN = small_domain()


def make():
    return ActLevel(DOMAIN, error_rate=0.15, max_turns=6)


def test_a_transcript_has_goal_acts_beliefs_rewards_and_verdict():
    (episode,) = run_dialogues(Handcrafted(DOMAIN), make, 0, [0])
    lines = transcript(DOMAIN, make().names, episode).splitlines()
    wanted = episode.info["first_goal"]["constraints"]
    assert lines[0].startswith("dialogue 0, goal: ")
    assert all(f"{slot}={value}" in lines[0] for slot, value in wanted.items())
    beliefs = [line for line in lines if line.startswith("  belief")]
    assert len(beliefs) == len(episode)
    layout, row = Layout(DOMAIN), episode.observations[0].copy()
    row[layout.slots["tea"]] = [0.3, 0.06, 0.049, 0.5, 0.091]  # green, black, white, dontcare, none
    row[layout.slots["area"]] = [0.04, 0.0, 0.0, 0.96]
    assert describe_belief(layout, row) == "tea: dontcare 0.50 green 0.30 black 0.06; area: -"
    systems = [line for line in lines if line.startswith("  system")]
    assert [line.rpartition("[")[2].rstrip("]") for line in systems] == [make().names[a] for a in episode.actions]
    users = [line for line in lines if line.startswith("  user")]
    assert len(users) == len(episode) + 1
    assert users[-1].endswith("[reward +19]" if episode.success else "[reward -1]")
    verdict = "success" if episode.success else "failure"
    assert lines[-1].startswith(f"  {verdict} after {len(episode)} turns (the user said goodbye); reward ")


def test_a_dialogue_that_was_cut_off_says_so():
    episodes = run_dialogues(RandomPolicy(PolicySpec(1, 1)), make, 0, range(20))
    cut = next(episode for episode in episodes if episode.truncated)
    last = transcript(DOMAIN, make().names, cut).splitlines()[-1]
    assert last.startswith("  failure after 6 turns (the turn limit); reward -6; ")


def test_it_says_what_the_policy_chooses_at_act_level():
    """The same user with the same goal, who hears the same acts: so both environments hold the same dialogue."""
    environment, acts = restaurant(), ActLevel("restaurant")
    policy = Handcrafted(environment.domain)
    system = PolicyInWords(environment, policy)
    for seed in range(12):
        observation, info = acts.reset(seed=seed)
        system.begin(seed)
        while "success" not in info:
            action, _ = policy.act(observation[None], info["action_mask"][None])
            observation, _, _, _, info = acts.step(action[0])
            *_, ended = environment.step(system.reply())
        for key in ("user_acts", "system_acts", "success", "goal", "first_goal", "turns"):
            assert ended[key] == info[key], key
        assert ended["outcome"].f1 == info["inform"]["f1"]


POLICY = RandomPolicy(PolicySpec(2, 3))


def test_means_are_those_of_whole_dialogues():
    assert means(run_dialogues(POLICY, Counted, 0, range(4))) == pytest.approx(
        {"success": 0.5, "reward": (0 + 2.1 + 6.3 + 12.6) / 4, "turns": 2.5}
    )
    assert math.isnan(means([])["success"])
    assert len({VALIDATION_SEED, TEST_SEED, IMITATION_SEED}) == 3


class Silent(Counted):
    """Says of the dialogues 3, 7, 11 ... nothing of success."""

    def step(self, action):
        *turn, info = super().step(action)
        return *turn, {key: value for key, value in info.items() if key != "success" or self.dialogue % 4 != 3}


def test_a_dialogue_that_does_not_say_success_is_left_out_and_counted():
    episodes = run_dialogues(POLICY, Silent, 0, range(4))  # 0 and 2 are successes, 1 is none
    assert [one.success for one in episodes] == [True, False, True, None]
    assert (means(episodes)["success"], means(episodes)["success_of"]) == (pytest.approx(2 / 3), 3)
    measured = measure_dialogues(episodes)["success"]
    assert (measured["mean"], measured["of"]) == (pytest.approx(2 / 3), 3)
    assert "of" not in measure_dialogues(episodes[:3])["success"]
    assert "no word of success after 4 turns" in plain_transcript(["a", "b", "c"], episodes[3])
    assert "success_of" not in means(episodes[3:])
    assert math.isnan(means(episodes[3:])["success"])


def test_intervals_surround_the_mean_and_a_policy_does_not_differ_from_itself():
    episodes = run_dialogues(POLICY, Counted, 0, range(50))
    found = measure_dialogues(episodes)
    assert found["success"]["low"] < found["success"]["mean"] == 0.5 < found["success"]["high"]
    assert compare_dialogues(episodes, episodes)["reward"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
