import math

import pytest
from toy_environments import Counted

from rlhf_dialog.task_oriented.policies.base import Setting
from rlhf_dialog.task_oriented.policies.random import RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.measures import compared, means, measured
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, play

POLICY = RandomPolicy(Setting(2, 3))


def test_means_are_those_of_whole_dialogues():
    assert means(play(POLICY, Counted, 0, range(4))) == pytest.approx(
        {"success": 0.5, "reward": (0 + 2.1 + 6.3 + 12.6) / 4, "turns": 2.5}
    )
    assert math.isnan(means([])["success"])


def test_a_dialogue_in_pieces_counts_whole():
    sampler = Sampler(Counted, 0, 4)
    pieces = [one for _ in range(4) for one in sampler.sample(POLICY, 4)]
    ended = [one for one in pieces if one.ended and one.dialogue < 4]
    assert any(one.start for one in ended)
    assert means(ended) == pytest.approx(means(play(POLICY, Counted, 0, range(4))))


def test_intervals_surround_the_mean_and_a_policy_does_not_differ_from_itself():
    episodes = play(POLICY, Counted, 0, range(50))
    found = measured(episodes)
    assert found["success"]["low"] < found["success"]["mean"] == 0.5 < found["success"]["high"]
    assert compared(episodes, episodes)["reward"] == {"mean": 0.0, "low": 0.0, "high": 0.0}


def test_dialogues_without_requests_or_bookings_are_left_out_of_these_means():
    episodes = play(POLICY, Counted, 0, range(4))
    scores, rates = [1.0, None, 0.5, None], [None, 0.0, 1.0, 1.0]
    for episode, score, rate in zip(episodes, scores, rates, strict=True):
        episode.info |= {"inform": {"precision": score, "recall": 1.0, "f1": score}, "book_rate": rate}
    found = measured(episodes)
    assert found["inform_precision"]["mean"] == 0.75
    assert found["book_rate"]["mean"] == pytest.approx(2 / 3)
