"""Deep Q-networks, plain and Bayesian."""

from random import Random

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.bbqn import BBQN, BayesianLayers, gaussian_kl
from rlhf_dialog.task_oriented.policies.dqn import DQN
from rlhf_dialog.task_oriented.policies.network import mlp
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler
from tests.parts.toy_environments import Colours

# of three actions in the states 0 and 1, by the policy's network
VALUES = torch.tensor([[1.0, 5.0, 3.0], [4.0, 0.0, 2.0]])
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


def layers(sigma=0.3):
    generator = torch.Generator().manual_seed(0)
    found = BayesianLayers(mlp([3, 5, 2], generator, 1.0, torch.nn.ReLU), sigma)
    for rho in found.rhos:
        rho.data += 0.3 * torch.randn(rho.shape, generator=generator)
    return found, generator


def sigmas(own):
    return [(1 + rho.exp()).log() for rho in own.rhos]


def test_the_divergence_is_that_of_torch_over_all_weights():
    own, _ = layers()
    pairs = list(zip(own.means.parameters(), sigmas(own), strict=True))
    expected = [kl_divergence(Normal(mean, sigma), Normal(torch.zeros(()), torch.tensor(0.7))) for mean, sigma in pairs]
    torch.testing.assert_close(gaussian_kl(*pairs[0], 0.7), expected[0].sum())
    torch.testing.assert_close(own.divergence(0.7), sum(each.sum() for each in expected))


def test_noise_of_the_units_draws_what_drawn_weights_would_give():
    own, generator = layers()
    x, count = torch.tensor([[0.5, -1.0, 2.0]]), 20_000
    with torch.no_grad():
        found = own(x.expand(count, 3), own.noise(count, generator))
        w1, b1, w2, b2 = (
            mean + sigma * torch.randn(count, *mean.shape, generator=generator)
            for mean, sigma in zip(own.means.parameters(), sigmas(own), strict=True)
        )
        hidden = ((w1 @ x[0]) + b1).relu()
        expected = (w2 @ hidden[:, :, None])[:, :, 0] + b2
    spread = expected.std(dim=0)
    assert ((found.mean(dim=0) - expected.mean(dim=0)).abs() < 0.03 * spread).all()
    torch.testing.assert_close(found.std(dim=0), spread, rtol=0.03, atol=0)
    torch.testing.assert_close(found.T.corrcoef()[0, 1], expected.T.corrcoef()[0, 1], rtol=0, atol=0.03)


def test_without_noise_the_means_act():
    own, generator = layers()
    means, x = mlp([3, 5, 2], torch.Generator().manual_seed(0), 1.0, torch.nn.ReLU), torch.randn(4, 3)
    torch.testing.assert_close(own(x), means(x))
    assert not torch.equal(own(x, own.noise(4, generator)), own(x))


def test_a_turn_draws_its_own_weights_from_its_stream_and_an_evaluation_draws_none():
    policy = BBQN(PolicySpec(3, 4), hidden_sizes=(8,), initial_sigma=0.5)
    observations, masks = np.ones((300, 3), np.float32), np.ones((300, 4), bool)
    drawn = [policy.act(observations, masks, False, [Random(n) for n in range(300)])[0] for _ in range(2)]
    assert len(set(drawn[0].tolist())) > 1
    np.testing.assert_array_equal(*drawn)
    alone = [policy.act(observations[:1], masks[:1], False, [Random(n)])[0][0] for n in range(20)]
    assert alone == drawn[0][:20].tolist()
    policy.learner.slow.means[-1].bias.data[2] += 100
    assert (policy.act(observations, masks, True, [Random(n) for n in range(300)])[0] == 2).all()


def test_the_loss_is_minus_the_log_likelihood_and_the_share_of_the_divergence():
    policy = BBQN(PolicySpec(3, 4), hidden_sizes=(4,), batch_size=8, noise_sigma=2.0, kl_coef=0.5)
    for one in Sampler(Colours, 0, 2).sample(policy, 30):
        policy.observe(one)
    generator = torch.Generator().manual_seed(3)
    turns, noise = policy.replay.turns(8, generator), policy.layers.noise(8, generator)
    values = policy.layers(turns["observations"], noise)[range(8), turns["actions"]]
    likelihood = Normal(values, 2.0).log_prob(policy.targets(turns)) - Normal(0.0, 2.0).log_prob(torch.zeros(()))
    expected = -likelihood.mean() + 0.5 * policy.layers.divergence(policy.args.prior_sigma) / 30
    torch.testing.assert_close(policy._loss(torch.Generator().manual_seed(3))[0], expected)
