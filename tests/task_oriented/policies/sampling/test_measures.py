import math

import pytest

from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.measures import compare_dialogues, means, measure_dialogues
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from rlhf_dialog.task_oriented.policies.sampling.transcripts import plain_transcript
from tests.parts.toy_environments import Counted

POLICY = RandomPolicy(PolicySpec(2, 3))


def test_means_are_those_of_whole_dialogues():
    assert means(run_dialogues(POLICY, Counted, 0, range(4))) == pytest.approx(
        {"success": 0.5, "reward": (0 + 2.1 + 6.3 + 12.6) / 4, "turns": 2.5}
    )
    assert math.isnan(means([])["success"])


class Silent(Counted):
    """Says of the dialogues 3, 7, 11 ... nothing of success."""

    def step(self, action):
        *turn, info = super().step(action)
        return *turn, {key: value for key, value in info.items() if key != "success" or self.dialogue % 4 != 3}


def test_a_dialogue_that_does_not_say_success_is_left_out_and_counted():
    episodes = run_dialogues(POLICY, Silent, 0, range(4))  # 0 and 2 are successes, 1 is none
    assert [one.success for one in episodes] == [True, False, True, None]
    assert (means(episodes)["success"], means(episodes)["success_of"]) == (pytest.approx(2 / 3), 3)
    assert (measure_dialogues(episodes)["success"]["mean"], measure_dialogues(episodes)["success"]["of"]) == (
        pytest.approx(2 / 3),
        3,
    )
    assert "of" not in measure_dialogues(episodes[:3])["success"]
    assert "no word of success after 4 turns" in plain_transcript(["a", "b", "c"], episodes[3])
    assert "success_of" not in means(episodes[3:])
    assert math.isnan(means(episodes[3:])["success"])


def test_a_dialogue_in_pieces_counts_whole():
    sampler = Sampler(Counted, 0, 4)
    pieces = [one for _ in range(4) for one in sampler.sample(POLICY, 4)]
    ended = [one for one in pieces if one.ended and one.dialogue < 4]
    assert any(one.start for one in ended)
    assert means(ended) == pytest.approx(means(run_dialogues(POLICY, Counted, 0, range(4))))


def test_intervals_surround_the_mean_and_a_policy_does_not_differ_from_itself():
    episodes = run_dialogues(POLICY, Counted, 0, range(50))
    found = measure_dialogues(episodes)
    assert found["success"]["low"] < found["success"]["mean"] == 0.5 < found["success"]["high"]
    assert compare_dialogues(episodes, episodes)["reward"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
