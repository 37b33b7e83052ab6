"""Dialogues at act level, of one domain or of several, turn by turn."""

from random import Random

import numpy as np

from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.built_in import build_handcrafted


def handcrafted(environment):
    policy = build_handcrafted(PolicySpec(0, 0, domain=environment.domain))
    return lambda observation, mask: int(policy.act(observation[None], mask[None])[0][0])


def at_random(environment):
    rng = Random(7)
    return lambda observation, mask: int(rng.choice(np.flatnonzero(mask)))


def play(environment, choose, **reset):
    """One dialogue; returns the sum of its rewards, its observations and the last info."""
    observation, info = environment.reset(**reset)
    total, seen, ended = 0.0, [observation], False
    while not ended:
        observation, reward, terminated, truncated, info = environment.step(choose(observation, info["action_mask"]))
        seen.append(observation)
        total, ended = total + reward, terminated or truncated
    return total, np.array(seen), info | {"terminated": terminated, "truncated": truncated}


def many(environment, choose, number, seed=0):
    return [play(environment, choose, seed=seed, options={"dialogue": n}) for n in range(number)]
