"""Bayes by backprop: the divergence in closed form, draws that are those of drawn weights, and a toy that is learned."""

from random import Random

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.bbqn import BBQN, BayesianLayers, gaussian_kl
from rlhf_dialog.task_oriented.policies.network import mlp
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from tests.parts.toy_environments import Colours, best


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


@pytest.mark.thorough
def test_bbqn_learns_the_right_masked_policy_of_a_toy():
    policy = BBQN(PolicySpec(3, 4), hidden_sizes=(32,), lr=3e-3, target_share=0.05)
    sampler = Sampler(Colours, 0, 8)
    for _ in range(12):
        for one in sampler.sample(policy, 96):
            policy.observe(one)
        policy.update()
    episodes = run_dialogues(policy, Colours, 99, range(60))
    right = np.concatenate([one.actions == best(one.observations, one.masks) for one in episodes])
    assert right.mean() > 0.9
