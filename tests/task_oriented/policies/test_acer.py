"""ACER: Retrace by its sums, truncation with bias correction by hand, the trust region, and a toy that is learned."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from rlhf_dialog.task_oriented.policies.acer import ACER, compute_weights, project_gradient, retrace, score_gradient
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from tests.parts.toy_environments import Colours, best


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def slow_retrace(rewards, taken, means, ratios, gamma):
    """Munos et al. 2016, equation 4 with lambda 1, for one dialogue: Q + sum of discounted, weighted errors of later turns."""
    count, targets = len(rewards), []
    following = [*means[1:], 0.0]
    errors = [rewards[s] + gamma * following[s] - taken[s] for s in range(count)]
    for t in range(count):
        weights = [np.prod([min(1.0, ratios[i]) for i in range(t + 1, s + 1)]) for s in range(t, count)]
        targets.append(
            taken[t] + sum(gamma**n * w * e for n, (w, e) in enumerate(zip(weights, errors[t:], strict=True)))
        )
    return targets


def test_retrace_is_the_sum_of_its_definition_and_does_not_cross_the_end_of_a_dialogue():
    rng, lengths = np.random.default_rng(0), (3, 1, 5)
    rows = [rng.normal(size=(4, length)) for length in lengths]
    for each in rows:
        each[3] = rng.uniform(0.2, 3, each.shape[1])
    expected = np.concatenate([slow_retrace(*each, gamma=0.9) for each in rows])
    columns = torch.from_numpy(np.concatenate(rows, axis=1)).float()
    ended = torch.tensor([0, 0, 1, 1, 0, 0, 0, 0, 1], dtype=torch.bool)
    np.testing.assert_allclose(retrace(*columns, ended, 0.9), expected, rtol=1e-4)


def test_truncated_weights_with_bias_correction_by_hand():
    policy, behaviour = torch.tensor([[0.8, 0.2]] * 2), torch.tensor([[0.1, 0.9]] * 2)
    model, advantages, taken = torch.tensor([[3.0, -7.0]] * 2), torch.tensor([2.0, -4.0]), torch.tensor([[0], [1]])
    found = compute_weights(policy / behaviour, policy, taken, advantages, model, truncation=5.0)
    # rho is 8 and 2/9. Action 0: 5 of 8 remain, and .8 (1 - 5/8) of what the critic says, .3 * 3, makes up for the rest
    expected = [[5 * 2 + 0.3 * 3, 0.0], [0.3 * 3, 2 / 9 * -4]]
    torch.testing.assert_close(found, torch.tensor(expected))


@pytest.mark.parametrize("truncation", [0.0, 0.5, 2.0, 1e6])
def test_the_expected_weights_are_those_of_the_policy_with_every_truncation(truncation):
    policy, behaviour = torch.rand(2, 5, generator=generator()).softmax(dim=1)
    policy, model = (4 * policy).softmax(dim=0)[None].repeat(5, 1), torch.randn(5, generator=generator(1))
    taken = torch.arange(5)[:, None]
    found = compute_weights(policy / behaviour, policy, taken, model, model[None].repeat(5, 1), truncation)
    torch.testing.assert_close(behaviour @ found, policy[0] * model)


def test_the_gradient_of_the_scores_is_that_of_autograd():
    scores, weights = (torch.randn(3, 4, generator=generator(n)) for n in (0, 1))
    scores.requires_grad_()
    (weights * scores.log_softmax(dim=1)).sum().backward()
    torch.testing.assert_close(score_gradient(weights, scores.detach().softmax(dim=1)), scores.grad)


def test_a_gradient_within_the_trust_region_stays_and_another_one_is_projected_onto_its_edge():
    gradient, away = torch.tensor([[3.0, 1.0], [3.0, 1.0], [-3.0, 1.0], [3.0, 1.0]]), torch.tensor([2.0, 0.0])
    away = torch.stack([away, away / 100, away, 0 * away])
    found = project_gradient(gradient, away, trust=1.0)
    assert found.tolist() == [[0.5, 1.0], [3.0, 1.0], [-3.0, 1.0], [3.0, 1.0]]


def test_no_other_vector_of_the_trust_region_is_nearer():
    gradient, away, trust = torch.randn(6, generator=generator()), torch.randn(6, generator=generator(1)), 0.1
    gradient = gradient if gradient @ away > trust else -gradient
    found = project_gradient(gradient, away, trust)
    others = gradient + torch.randn(200_000, 6, generator=generator(2)) * (found - gradient).norm()
    allowed = others[others @ away <= trust]
    assert len(allowed) > 1000
    assert found @ away == pytest.approx(trust, abs=1e-5)
    assert (allowed - gradient).norm(dim=1).min() >= (found - gradient).norm() - 1e-5


def filled(**args):
    """A policy that has moved away from what acted, with a replay of a few dialogues."""
    policy = ACER(PolicySpec(3, 4), hidden_sizes=(8,), batch_size=6, **args)
    for one in Sampler(Colours, 0, 2).sample(policy, 30):
        policy.observe(one)
    noise = generator(9)
    with torch.no_grad():
        for weight in policy.learner.parameters():
            weight += 0.5 * torch.randn(weight.shape, generator=noise)
    return policy


def test_the_step_follows_the_formulas_of_the_paper():
    policy = filled(truncation=1.2, trust=0.05, entropy_coef=0.3, gamma=0.9)
    turns = policy.replay.whole(6, generator(4))
    observations, masks, rows = turns["observations"], turns["masks"], torch.arange(len(turns["turn"]))
    scores = policy.learner.policy(observations).detach().requires_grad_()
    pi = scores.masked_fill(~masks, -torch.inf).softmax(dim=1)
    average = policy.learner.slow(observations).masked_fill(~masks, -torch.inf).softmax(dim=1)
    values = policy.learner.critic(observations)
    q, p = values.detach(), pi.detach()
    v, rho = (p * q).sum(dim=1), (p / turns["behaviour"]).nan_to_num()
    ends = [0, *(turns["ended"].nonzero()[:, 0] + 1).tolist()]
    parts = [
        slow_retrace(
            *(x[a:b].tolist() for x in (turns["rewards"], q[rows, turns["actions"]], v, rho[rows, turns["actions"]])),
            0.9,
        )
        for a, b in pairwise(ends)
    ]
    returns = torch.tensor([x for part in parts for x in part])
    logs = pi.clamp_min(1e-30).log()
    first = rho[rows, turns["actions"]].clamp(max=1.2) * logs[rows, turns["actions"]] * (returns - v)
    second = ((1 - 1.2 / rho).clamp(min=0) * p * logs * (q - v[:, None])).nan_to_num().sum(dim=1)
    entropy = -(pi * logs).sum(dim=1)
    (g,) = torch.autograd.grad((first + second + 0.3 * entropy).sum(), scores, retain_graph=True)
    (k,) = torch.autograd.grad((average * (average.clamp_min(1e-30).log() - logs)).sum(), scores)
    excess = ((g * k).sum(dim=1) - 0.05).clamp(min=0) / k.square().sum(dim=1)
    assert (excess > 0).any()
    assert (excess == 0).any()
    scores_again = policy.learner.policy(observations)
    loss = -(scores_again * (g - excess[:, None] * k).detach()).sum() / len(rows)
    loss = loss + torch.nn.functional.smooth_l1_loss(values[rows, turns["actions"]], returns)
    weights = list(policy.learner.policy.parameters()) + list(policy.learner.critic.parameters())
    expected = torch.autograd.grad(loss, weights)
    found = torch.autograd.grad(policy._loss(generator(4))[0], weights)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.thorough
def test_acer_learns_the_right_masked_policy_of_a_toy():
    policy = ACER(PolicySpec(3, 4), hidden_sizes=(32,), lr=3e-3)
    sampler = Sampler(Colours, 0, 8)
    for _ in range(16):
        for one in sampler.sample(policy, 96):
            policy.observe(one)
        policy.update()
    episodes = run_dialogues(policy, Colours, 99, range(60))
    right = np.concatenate([one.actions == best(one.observations, one.masks) for one in episodes])
    assert right.mean() > 0.85
