import math

import numpy as np
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
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from rlhf_dialog.task_oriented.policies.sampling.transcripts import describe_belief, plain_transcript, transcript
from rlhf_dialog.task_oriented.runs.run import IMITATION_SEED
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from rlhf_dialog.task_oriented.world.multi_domain.act_level import MultiActLevel
from rlhf_dialog.task_oriented.world.restaurant import restaurant
from rlhf_dialog.task_oriented.world.summary import Layout
from tests.parts.small_domain import small_domain
from tests.parts.small_world import multi_goal, small_world
from tests.parts.toy_environments import Counted

POLICY = RandomPolicy(PolicySpec(2, 3))


@pytest.mark.parametrize(("num_envs", "num_turns"), [(1, 1), (3, 50), (8, 5), (8, 8)])
def test_the_number_of_turns_is_exact(num_envs, num_turns):
    sampler = Sampler(Counted, 0, num_envs)
    for _ in range(3):
        assert sum(map(len, sampler.sample(POLICY, num_turns))) == num_turns


def test_an_episode_holds_what_was_seen_done_and_paid():
    (whole, *_) = Sampler(Counted, 0, 1).sample(POLICY, 4)
    assert (whole.dialogue, whole.terminated, whole.truncated, whole.success) == (0, True, False, True)
    episodes = {episode.dialogue: episode for episode in Sampler(Counted, 0, 2).sample(POLICY, 20) if episode.ended}
    three = episodes[3]
    assert three.observations.tolist() == [[3, 0], [3, 1], [3, 2], [3, 3]]
    np.testing.assert_allclose(three.rewards, [3.0, 3.1, 3.2, 3.3], rtol=1e-6)
    assert (three.terminated, three.truncated, three.success) == (False, True, False)
    assert (three.last_observation.tolist(), three.total_reward) == ([3, 4], pytest.approx(12.6))
    np.testing.assert_allclose(three.logprobs, np.log(1 / 3), rtol=1e-6)
    assert (three.masks.shape, three.values.tolist()) == ((4, 3), [0.0] * 4)
    ended = [episode for episode in Sampler(Counted, 0, 4).sample(POLICY, 200) if episode.ended]
    assert len(ended) > 40
    assert all(episode.actions.tolist() == episode.info["actions"] for episode in ended)
    assert {action for episode in ended for action in episode.actions.tolist()} == {0, 1, 2}


def whole_dialogues(num_envs, calls):
    """Dialogue -> its actions, put together from the pieces of several calls."""
    sampler, found, ended = Sampler(Counted, 7, num_envs), {}, set()
    for num_turns in calls:
        for episode in sampler.sample(POLICY, num_turns):
            row = found.setdefault(episode.dialogue, [])
            assert episode.start == len(row)
            assert episode.observations[:, 1].tolist() == list(range(len(row), len(row) + len(episode)))
            row += episode.actions.tolist()
            ended |= {episode.dialogue} if episode.ended else set()
    return {dialogue: tuple(actions) for dialogue, actions in found.items() if dialogue in ended}


def test_a_cut_dialogue_goes_on_in_the_next_call_and_no_dialogue_depends_on_those_beside_it():
    pieces = whole_dialogues(4, [13, 1, 2, 30, 7])
    apart = {one.dialogue: tuple(one.actions.tolist()) for one in run_dialogues(POLICY, Counted, 7, pieces, num_envs=1)}
    assert len(pieces) > 10
    assert pieces == apart
    sampler = Sampler(Counted, 0, 5)
    last = sampler.sample(POLICY, 10)[-1]
    assert (last.dialogue, last.ended, last.success, last.info) == (4, False, False, {})
    assert last.last_observation.tolist() == [4, 2]


def test_each_turn_of_each_dialogue_of_each_seed_has_a_stream_of_its_own():
    drawn = []

    class Draws:
        def act(self, observations, masks, deterministic, streams):
            drawn.extend(each.random() for each in streams)
            return np.zeros(len(masks), np.int64), {}

    for seed in (0, 1):
        Sampler(Counted, seed, 4).sample(Draws(), 100)
    assert len(set(drawn)) == len(drawn) == 200


def test_a_sampler_goes_on_exactly_from_its_state():
    one = Sampler(Counted, 0, 3)
    one.sample(POLICY, 17)
    other, state = Sampler(Counted, 0, 3), one.state_dict()
    one.sample(POLICY, 5)  # which does not change the state that was taken
    other.load_state_dict(state)
    other.sample(POLICY, 5)
    for mine, theirs in zip(one.sample(POLICY, 40), other.sample(POLICY, 40), strict=True):
        assert (mine.dialogue, mine.start, mine.total_reward) == (theirs.dialogue, theirs.start, theirs.total_reward)
        assert mine.actions.tolist() == theirs.actions.tolist()
        assert mine.observations.tolist() == theirs.observations.tolist()


def test_played_dialogues_come_in_the_order_that_was_asked_for():
    episodes = run_dialogues(POLICY, Counted, 0, [9, 4, 0, 3, 12, 5], num_envs=4)
    assert [episode.dialogue for episode in episodes] == [9, 4, 0, 3, 12, 5]
    assert [len(episode) for episode in episodes] == [5, 5, 1, 4, 3, 1]
    assert run_dialogues(POLICY, Counted, 0, []) == []


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
    verdict = f"{'success' if episode.success else 'failure'} after {len(episode)} turns"
    assert lines[-1].startswith(f"  {verdict} (the user said goodbye); reward ")
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


def test_means_are_those_of_whole_dialogues_and_intervals_surround_them():
    assert means(run_dialogues(POLICY, Counted, 0, range(4))) == pytest.approx(
        {"success": 0.5, "reward": (0 + 2.1 + 6.3 + 12.6) / 4, "turns": 2.5}
    )
    assert math.isnan(means([])["success"])
    assert len({VALIDATION_SEED, TEST_SEED, IMITATION_SEED}) == 3
    episodes = run_dialogues(POLICY, Counted, 0, range(50))
    found = measure_dialogues(episodes)
    assert found["success"]["low"] < found["success"]["mean"] == 0.5 < found["success"]["high"]
    assert compare_dialogues(episodes, episodes)["reward"] == {"mean": 0.0, "low": 0.0, "high": 0.0}


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
