"""An oracle: sb3-contrib's MaskablePPO learns on the act-level view without any adapter, and about as well as ours.

Nothing depends on it. To run this: pip install --no-deps --target DIR sb3-contrib stable-baselines3, and PYTHONPATH=DIR.
"""

from functools import partial

import pytest
from small_domain import small_domain

from rlhf_dialog.task_oriented.policies.base import Setting
from rlhf_dialog.task_oriented.policies.ppo import PPO
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, play
from rlhf_dialog.task_oriented.world.act_level import ActLevel

TURNS = 8192


class Oracle:
    """A model of sb3-contrib as a policy."""

    def __init__(self, model):
        self.model = model

    def act(self, observations, masks, deterministic):
        return self.model.predict(observations, action_masks=masks, deterministic=deterministic)[0], {}


def ours(make):
    environment = make()
    policy = PPO(Setting(environment.layout.size, len(environment.names), num_updates=TURNS // 1024))
    sampler = Sampler(make, 0, 8)
    for _ in range(TURNS // 1024):
        for episode in sampler.sample(policy, 1024):
            policy.observe(episode)
        policy.update()
    return policy


@pytest.mark.slow
def test_the_oracle_learns_on_our_view_and_ours_is_not_worse():
    contrib = pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed")
    from stable_baselines3.common.vec_env import DummyVecEnv

    make = partial(ActLevel, small_domain(), 0.15)
    settings = {"n_steps": 128, "batch_size": 128, "n_epochs": 5, "learning_rate": 1e-3, "ent_coef": 0.01, "seed": 0}
    model = contrib.MaskablePPO(
        "MlpPolicy", DummyVecEnv([make] * 8), policy_kwargs={"net_arch": [128, 64]}, device="cpu", **settings
    )
    model.learn(TURNS)
    rewards = [
        [episode.paid for episode in play(policy, make, 9, range(400), 32)] for policy in (ours(make), Oracle(model))
    ]
    mine, oracle = (sum(paid) / len(paid) for paid in rewards)
    assert oracle > 8
    assert mine > oracle - 1
