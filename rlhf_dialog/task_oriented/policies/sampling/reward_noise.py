"""Rewards as people give them: some of them are wrong."""

from dataclasses import replace
from random import Random

import numpy as np

from rlhf_dialog.task_oriented.policies.base import Episode
from rlhf_dialog.task_oriented.world.act_world import SUCCESS_REWARD


def with_reward_noise(episode: Episode, share: float, seed: int) -> Episode:
    """What a policy learns from when a share of the dialogues of `ActLevel` is judged wrongly: then the last reward of a success
    is that of a failure, and the other way round.

    Whether it is judged wrongly depends on seed and dialogue alone. `total_reward` and `success` stay what they were.
    """
    if not episode.ended or Random(f"{seed}/{episode.dialogue}/judgement").random() >= share:
        return episode
    difference = -SUCCESS_REWARD if episode.success else SUCCESS_REWARD
    return replace(episode, rewards=np.append(episode.rewards[:-1], np.float32(episode.rewards[-1] + difference)))
