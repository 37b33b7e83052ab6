"""Imitation: the actions become probable, and the critic knows the returns."""

import numpy as np
from small_domain import small_domain
from toy_environments import Colours, best

from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted
from rlhf_dialog.task_oriented.policies.imitation import imitate
from rlhf_dialog.task_oriented.policies.ppo import PPO
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.world.act_level import ActLevel


class Best:
    """The right policy of `Colours`."""

    def act(self, observations, masks, deterministic):
        return best(observations, masks), {}


def test_the_right_policy_of_a_toy_is_copied_under_masks():
    policy = PPO(PolicySpec(3, 4), hidden_sizes=(32,))
    assert imitate(policy, run_dialogues(Best(), Colours, 0, range(300)), seed=0) == {"imitation/accuracy": 1.0}
    episodes = run_dialogues(policy, Colours, 5, range(50))
    assert all((one.actions == best(one.observations, one.masks)).all() for one in episodes)
    assert policy.learner.optimizer.state_dict()["state"] == {}


def test_the_handcrafted_policy_of_a_domain_is_copied_and_the_critic_expects_its_returns():
    domain = small_domain()

    def make():
        return ActLevel(domain)

    names = make().names
    policy = PPO(PolicySpec(make().layout.size, len(names)), hidden_sizes=(32,), gamma=1.0)
    episodes = run_dialogues(Handcrafted(domain), make, 0, range(200))
    assert imitate(policy, episodes, seed=0)["imitation/accuracy"] > 0.85
    first = np.stack([one.observations[0] for one in episodes])
    masks = np.stack([one.masks[0] for one in episodes])
    expected = policy.act(first, masks, deterministic=True)[1]["values"].mean()
    assert abs(expected - np.mean([one.total_reward for one in episodes])) < 2.0
