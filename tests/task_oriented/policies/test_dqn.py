"""Double DQN: the target by hand, exploration that ends, and a toy that is learned under its masks."""

from random import Random

import numpy as np
import pytest
import torch

from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.dqn import DQN
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from tests.parts.toy_environments import Colours, best

VALUES = torch.tensor(
    [[1.0, 5.0, 3.0], [4.0, 0.0, 2.0]]
)  # of three actions in the states 0 and 1, by the policy's network
SLOW = torch.tensor([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]])  # by the target network


class Table(torch.nn.Module):
    """Q-values (N, A) of the states that observations (N, 1) name."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def forward(self, observations):
        return self.rows[observations[:, 0].long()]


def test_the_target_is_the_slow_value_of_the_best_allowed_action_and_nothing_follows_an_end():
    policy = DQN(PolicySpec(1, 3), gamma=0.5)
    policy.learner.policy, policy.learner.slow = Table(VALUES), Table(SLOW)
    turns = {
        "rewards": torch.tensor([-1.0, -1.0, -1.0, 19.0]),
        "next_observations": torch.tensor([[0.0], [0.0], [1.0], [1.0]]),
        "next_masks": torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=torch.bool),
        "ended": torch.tensor([False, False, False, True]),
    }
    # the best actions by VALUES: 1; 2, as 1 is masked; 2, as 0 is masked; none, as the dialogue is over
    assert policy.targets(turns).tolist() == [-1 + 10, -1 + 15, -1 + 30, 19]


def test_one_step_lowers_the_squared_error_and_moves_the_target_network_by_its_share():
    policy = DQN(PolicySpec(3, 4), hidden_sizes=(4,), batch_size=16, target_share=0.25, max_grad_norm=1e6)
    for one in Sampler(Colours, 0, 2).sample(policy, 30):
        policy.observe(one)
    slow = [weight.clone() for weight in policy.learner.slow.parameters()]
    turns = policy.replay.turns(16, torch.Generator().manual_seed(7))
    values = policy.learner.policy(turns["observations"])[range(16), turns["actions"]]
    expected = torch.autograd.grad(((values - policy.targets(turns)) ** 2).mean(), policy.learner.policy.parameters())
    policy._step(torch.Generator().manual_seed(7))
    for weight, gradient in zip(policy.learner.policy.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient)
    for before, after, leading in zip(
        slow, policy.learner.slow.parameters(), policy.learner.policy.parameters(), strict=True
    ):
        torch.testing.assert_close(after, 0.75 * before + 0.25 * leading)


def test_exploration_falls_to_nothing_and_is_off_while_evaluating():
    policy = DQN(PolicySpec(1, 3), epsilon=0.4, epsilon_dialogues=100)
    policy.learner.policy = Table(VALUES)
    observations, masks = np.zeros((2000, 1), np.float32), np.ones((2000, 3), bool)
    shares = {}
    for num_dialogues in (0, 50, 100, 1000):
        policy.num_dialogues = num_dialogues
        actions, _ = policy.act(observations, masks, False, [Random(n) for n in range(2000)])
        shares[num_dialogues] = (actions != 1).mean()
    assert shares[0] == pytest.approx(0.4 * 2 / 3, abs=0.04)
    assert shares[50] == pytest.approx(0.2 * 2 / 3, abs=0.04)
    assert shares[100] == shares[1000] == 0
    policy.num_dialogues = 0
    policy.learner.slow = Table(VALUES[:, [1, 0, 2]])
    assert (policy.act(observations, masks, True, [Random(n) for n in range(2000)])[0] == 0).all()


@pytest.mark.thorough
def test_dqn_learns_the_right_masked_policy_of_a_toy():
    policy = DQN(PolicySpec(3, 4), hidden_sizes=(32,), lr=3e-3, epsilon_dialogues=300, target_share=0.05)
    sampler = Sampler(Colours, 0, 8)
    for _ in range(15):
        for one in sampler.sample(policy, 96):
            policy.observe(one)
        policy.update()
    episodes = run_dialogues(policy, Colours, 99, range(60))
    right = np.concatenate([one.actions == best(one.observations, one.masks) for one in episodes])
    assert right.mean() > 0.9
