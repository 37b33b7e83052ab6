"""An oracle: sb3-contrib's MaskablePPO learns on the act-level view without any adapter, and about as well as ours.

Nothing depends on it. To run this: pip install --no-deps --target DIR sb3-contrib stable-baselines3, and PYTHONPATH=DIR.
"""

import statistics
from functools import partial

import pytest

from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.ppo import PPO
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from tests.parts.small_domain import small_domain

TURNS = 20_480
SEEDS = range(5)
NUM_DIALOGUES = 400
T_QUANTILE = 2.776  # Student's t, 97.5 %, 4 degrees of freedom


class Oracle:
    """A model of sb3-contrib as a policy."""

    def __init__(self, model):
        self.model = model

    def act(self, observations, masks, deterministic, streams=()):
        return self.model.predict(observations, action_masks=masks, deterministic=deterministic)[0], {}


def ours(make, seed):
    environment = make()
    policy = PPO(PolicySpec(environment.layout.size, len(environment.names), seed=seed, num_updates=TURNS // 1024))
    sampler = Sampler(make, seed, 8)
    for _ in range(TURNS // 1024):
        for episode in sampler.sample(policy, 1024):
            policy.observe(episode)
        policy.update()
    return policy


def theirs(make, seed):
    from sb3_contrib import MaskablePPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    settings = {"n_steps": 128, "batch_size": 128, "n_epochs": 5, "learning_rate": 1e-3, "ent_coef": 0.01}
    network = {"net_arch": [128, 64]}
    model = MaskablePPO(
        "MlpPolicy", DummyVecEnv([make] * 8), policy_kwargs=network, device="cpu", seed=seed, **settings
    )
    model.learn(TURNS)
    return Oracle(model)


def success(policy, make):
    """In percent."""
    episodes = run_dialogues(policy, make, 9, range(NUM_DIALOGUES), 32)
    return 100 * statistics.mean(episode.success for episode in episodes)


@pytest.mark.slow
def test_the_oracle_learns_on_our_view_and_ours_is_not_worse():
    """At 30 % errors, after the same turns: at least -2 points in the mean of the seeds, and 0 or more in reach of their t."""
    pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed")
    make = partial(ActLevel, small_domain(), 0.3)
    pairs = [(success(ours(make, seed), make), success(theirs(make, seed), make)) for seed in SEEDS]
    differences = [mine - oracle for mine, oracle in pairs]
    mean, error = statistics.mean(differences), statistics.stdev(differences) / len(differences) ** 0.5
    assert statistics.mean(oracle for _, oracle in pairs) > 80
    assert mean >= -2, pairs
    assert mean + T_QUANTILE * error >= 0, pairs
