"""Dialogues at act level, of one domain or of several, turn by turn."""

from random import Random

import numpy as np

from rlhf_dialog.task_oriented.domains import MultiDomain
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted, HandcraftedMulti


def handcrafted(environment):
    domain = environment.domain
    policy = HandcraftedMulti(domain) if isinstance(domain, MultiDomain) else Handcrafted(domain)
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


def side_by_side(environments, choose, seed, dialogues):
    """What the users said in dialogues that take turns."""
    states = [e.reset(seed=seed, options={"dialogue": n}) for e, n in zip(environments, dialogues, strict=True)]
    running, turns = [True] * len(environments), [None] * len(environments)
    while any(running):
        for n in (n for n, runs in enumerate(running) if runs):
            observation, info = states[n]
            observation, _, terminated, truncated, info = environments[n].step(choose(observation, info["action_mask"]))
            states[n], running[n] = (observation, info), not (terminated or truncated)
            turns[n] = info.get("user_acts")
    return turns
