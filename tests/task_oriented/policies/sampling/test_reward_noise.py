"""Rewards as people give them."""

import numpy as np
import pytest

from rlhf_dialog.task_oriented.policies.base import Episode
from rlhf_dialog.task_oriented.policies.sampling.reward_noise import with_reward_noise


def episode(dialogue=0, success=True, terminated=True):
    """Two turns of a dialogue of `ActLevel`."""
    rewards = np.array([-1.0, 19.0 if success and terminated else -1.0], dtype=np.float32)
    zeros = np.zeros((2, 3), dtype=np.float32)
    columns = (zeros, zeros > 0, np.zeros(2, dtype=np.int64), zeros[:, 0], rewards, zeros[:, 0])
    return Episode(*columns, terminated, False, zeros[0], dialogue, success=success, total_reward=float(rewards.sum()))


@pytest.mark.parametrize("success", [True, False])
def test_a_wrong_judgement_pays_for_the_opposite(success):
    right = episode(success=success)
    wrong = with_reward_noise(right, 1.0, seed=0)
    assert wrong.rewards.tolist() == [-1.0, -1.0 if success else 19.0]
    assert (wrong.success, wrong.total_reward) == (success, right.total_reward)
    assert right.rewards.tolist()[1] == (19.0 if success else -1.0)


def test_a_piece_that_is_not_the_end_and_a_share_of_0_change_nothing():
    piece = episode(terminated=False)
    assert with_reward_noise(piece, 1.0, seed=0) is piece
    assert with_reward_noise(episode(), 0.0, seed=0).rewards.tolist() == [-1.0, 19.0]


def test_the_share_and_which_dialogues_follow_from_the_seed():
    def wrong(seed):
        return [with_reward_noise(episode(number), 0.2, seed).rewards[1] < 0 for number in range(2000)]

    assert np.mean(wrong(0)) == pytest.approx(0.2, abs=0.03)
    assert wrong(0) == wrong(0)
    assert wrong(0) != wrong(1)
