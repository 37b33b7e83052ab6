"""Episodes: exact numbers of turns, pieces that fit together, and dialogues that depend on nothing beside them."""

import numpy as np
import pytest

from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
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
    sampler = Sampler(Counted, 0, 2)
    episodes = {episode.dialogue: episode for episode in sampler.sample(POLICY, 20) if episode.ended}
    three = episodes[3]
    assert three.observations.tolist() == [[3, 0], [3, 1], [3, 2], [3, 3]]
    np.testing.assert_allclose(three.rewards, [3.0, 3.1, 3.2, 3.3], rtol=1e-6)
    assert (three.terminated, three.truncated, three.success) == (False, True, False)
    assert (three.last_observation.tolist(), three.total_reward) == ([3, 4], pytest.approx(12.6))
    np.testing.assert_allclose(three.logprobs, np.log(1 / 3), rtol=1e-6)
    assert (three.masks.shape, three.values.tolist()) == ((4, 3), [0.0] * 4)


def test_the_stored_actions_are_those_that_the_environment_got():
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
