from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_dialog.task_oriented.policies.a2c import A2C, vtrace
from rlhf_dialog.task_oriented.policies.acer import ACER, project_gradient
from rlhf_dialog.task_oriented.policies.base import Episode, PolicySpec
from rlhf_dialog.task_oriented.policies.enac import ENAC, least_squares
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler
from rlhf_dialog.task_oriented.policies.tracer import TRACER
from tests.parts.several_policies import watched
from tests.parts.toy_environments import Colours


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def slow_vtrace(rewards, values, weights, gamma, td_lambda):
    """Espeholt et al. 2018, remark 2, for one dialogue: V + sum of discounted, weighted errors of this turn and later ones."""
    count, following = len(rewards), [*values[1:], 0.0]
    errors = [rewards[s] + gamma * following[s] - values[s] for s in range(count)]
    traces = []
    for t in range(count):
        products = [np.prod([td_lambda * min(1.0, weights[i]) for i in range(t, s)]) for s in range(t, count)]
        later = zip(products, weights[t:], errors[t:], strict=True)
        traces.append(sum(gamma**n * product * w * error for n, (product, w, error) in enumerate(later)))
    advantages = [error + gamma * td_lambda * trace for error, trace in zip(errors, [*traces[1:], 0.0], strict=True)]
    return np.add(values, traces), advantages


def test_targets_and_advantages_are_the_sums_of_their_definition():
    rng, lengths = np.random.default_rng(0), (4, 1, 2)
    rows = [np.concatenate([rng.normal(size=(2, n)), rng.uniform(0.2, 2, (1, n))]) for n in lengths]
    slow = [slow_vtrace(*each, gamma=0.9, td_lambda=0.8) for each in rows]
    ended = torch.tensor([0, 0, 0, 1, 1, 0, 1], dtype=torch.bool)
    columns = torch.from_numpy(np.concatenate(rows, axis=1)).float()
    for found, expected in zip(vtrace(*columns, ended, 0.9, 0.8), zip(*slow, strict=True), strict=True):
        np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-4)


def filled(kind=A2C, batch_size=5, **args):
    """A policy that has moved away from what acted, with a replay of a few dialogues."""
    policy = watched(kind(PolicySpec(3, 4), hidden_sizes=(8,), batch_size=batch_size, **args), Colours, 30, num_envs=2)
    noise = generator(9)
    with torch.no_grad():
        for weight in policy.learner.parameters():
            weight += 0.5 * torch.randn(weight.shape, generator=noise)
    return policy


def textbook(policy, turns, weights):
    """Sum over turns of w log pi(a) (r + gamma V' - V), entropy, and half the squared error of V, turn by turn."""
    learner, total = policy.learner, torch.zeros(())
    for t, last in enumerate(turns["ended"].tolist()):
        scores = learner.policy(turns["observations"][t])[turns["masks"][t]]
        place = int(turns["masks"][t][: turns["actions"][t]].sum())
        probabilities = scores.softmax(dim=0)
        value = learner.critic(turns["observations"][t])[0]
        after = 0.0 if last else learner.critic(turns["observations"][t + 1])[0].item()
        error = turns["rewards"][t] + policy.args.gamma * after - value
        target = value.item() + weights[t] * error.item()
        gap = (value - target).abs()
        entropy = -(probabilities * probabilities.log()).sum()
        gain = weights[t] * probabilities[place].log() * error.item() + policy.args.entropy_coef * entropy
        total = total + torch.where(gap < 1, gap**2 / 2, gap - 0.5) - gain
    return total / len(turns["ended"])


@pytest.mark.parametrize("weighted", [False, True])
def test_the_step_follows_the_gradient_of_the_textbook(weighted):
    policy = filled(td_lambda=0.0, gamma=0.9, entropy_coef=0.2, importance_weights=weighted, truncation=1.5)
    turns = policy.replay.whole(5, generator(4)) if weighted else policy.replay.newest(5)
    now = policy.learner.policy(turns["observations"]).masked_fill(~turns["masks"], -torch.inf).softmax(dim=1)
    ratios = now.gather(1, turns["actions"][:, None])[:, 0] / turns["logprobs"].exp()
    weights = ratios.clamp(max=1.5).tolist() if weighted else [1.0] * len(ratios)
    assert ratios.min() < 0.9
    assert ratios.max() > 1.5
    parameters = list(policy.learner.parameters())
    expected = torch.autograd.grad(textbook(policy, turns, weights), parameters)
    found = torch.autograd.grad(policy._loss(generator(4))[0], parameters)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def gradients(cls, **args):
    """The gradient (P,) of the policy's loss, after it has moved away from its average, and that of its KL from the average."""
    policy = filled(cls)
    policy.args = SimpleNamespace(**vars(policy.args) | args)  # a trust below 0 too, which a user cannot give
    weights, turns = list(policy.learner.policy.parameters()), policy.replay.whole(5, generator(4))
    found = torch.autograd.grad(policy._loss(generator(4))[0], weights)
    slow = policy.learner.slow if cls is TRACER else policy.learner.policy
    now, average = (
        network(turns["observations"]).masked_fill(~turns["masks"], -1e9).softmax(dim=1).clamp_min(1e-30)
        for network in (policy.learner.policy, slow)
    )
    away = torch.autograd.grad((average.detach() * (average.detach() / now).log()).sum(dim=1).mean(), weights)
    return tuple(torch.cat([part.flatten() for part in parts]) for parts in (found, away))


def test_a_step_of_a2c_within_the_trust_region_is_not_changed_and_another_one_ends_at_its_edge():
    free, _ = gradients(A2C)
    unbound, away = gradients(TRACER, trust=1e6)
    torch.testing.assert_close(unbound, free)
    along = (-free @ away).item()
    torch.testing.assert_close(gradients(TRACER, trust=along + 0.01)[0], free)
    bound, _ = gradients(TRACER, trust=along - 0.01)
    assert -bound @ away == pytest.approx(along - 0.01, abs=1e-5)
    torch.testing.assert_close(bound - free, 0.01 * away / (away @ away), rtol=1e-2, atol=1e-5)


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


def test_a_gradient_within_the_trust_region_stays_and_another_one_is_projected_onto_its_edge():
    gradient, away = torch.tensor([[3.0, 1.0], [3.0, 1.0], [-3.0, 1.0], [3.0, 1.0]]), torch.tensor([2.0, 0.0])
    away = torch.stack([away, away / 100, away, 0 * away])
    found = project_gradient(gradient, away, trust=1.0)
    assert found.tolist() == [[0.5, 1.0], [3.0, 1.0], [-3.0, 1.0], [3.0, 1.0]]


def test_the_step_follows_the_formulas_of_the_paper():
    policy = filled(ACER, batch_size=6, truncation=1.2, trust=0.05, entropy_coef=0.3, gamma=0.9)
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


WORTH = np.array([4.0, 1.0, -2.0])  # of the arms of a bandit


def test_the_fit_is_that_of_numpy_with_a_constant_and_a_ridge_on_the_other_coefficients():
    rng = np.random.default_rng(0)
    for count, size in ((30, 4), (6, 50)):
        gradients, returns = rng.normal(size=(count, size)), rng.normal(size=count) + 3
        centred = gradients - gradients.mean(axis=0)
        ridge = 0.1 * (centred**2).sum(axis=1).mean()
        design = np.hstack([gradients, np.ones((count, 1))])
        penalty = ridge * np.diag([1.0] * size + [0.0])
        expected = np.linalg.solve(design.T @ design + penalty, design.T @ returns)[:-1]
        found = least_squares(torch.from_numpy(gradients), torch.from_numpy(returns), 0.1)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def bandit(ridge=1e-9, max_kl=0.05):
    """A policy of three arms that observes nothing, each arm having been drawn once."""
    policy = ENAC(PolicySpec(1, 3), hidden_sizes=(), ridge=ridge, max_kl=max_kl)
    for arm, worth in enumerate(WORTH):
        columns = (np.array([x], np.float32) for x in (0.0, worth, 0.0))
        seen = np.zeros((1, 1), np.float32), np.ones((1, 3), bool), np.array([arm])
        policy.observe(Episode(*seen, *columns, True, False, np.zeros(1, np.float32), dialogue=arm))
    return policy


def test_the_natural_gradient_of_a_bandit_is_the_worth_of_its_arms_and_a_step_follows_it():
    policy = bandit()
    natural = least_squares(*policy.compute_gradients(policy.replay.newest(3)), 1e-9)
    np.testing.assert_allclose(natural[-3:], WORTH - WORTH.mean(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(natural[:-3], 0.0, atol=1e-6)
    policy = bandit(max_kl=1e-4)
    policy._step(torch.Generator())
    after = policy.learner.policy(torch.zeros(1, 1)).softmax(dim=1)[0].detach().numpy()
    moved = np.log(after)
    np.testing.assert_allclose((moved - moved.mean()) / moved.std(), (WORTH - WORTH.mean()) / WORTH.std(), rtol=1e-3)
    assert np.sum(np.log(1 / 3 / after)) / 3 == pytest.approx(1e-4, rel=0.05)


def test_a_dialogue_has_the_gradient_of_its_discounted_log_probability():
    policy = watched(ENAC(PolicySpec(3, 4), hidden_sizes=(5,), gamma=0.8), Colours, 45, num_envs=3)
    turns = policy.replay.newest(4)
    gradients, returns = policy.compute_gradients(turns)
    for number in range(4):
        rows = slice(3 * number, 3 * number + 3)
        scores = policy.learner.policy(turns["observations"][rows]).masked_fill(~turns["masks"][rows], -torch.inf)
        chosen = scores.softmax(dim=1)[range(3), turns["actions"][rows]].log()
        total = (torch.tensor([1.0, 0.8, 0.64]) * chosen).sum()
        expected = torch.autograd.grad(total, list(policy.learner.policy.parameters()))
        torch.testing.assert_close(gradients[number], torch.cat([part.flatten() for part in expected]))
        assert returns[number] == pytest.approx(0.64 * turns["rewards"][rows][2].item())


def test_a_step_learns_from_the_newest_dialogues_only():
    episodes, moved = Sampler(Colours, 0, 1).sample(ENAC(PolicySpec(3, 4), hidden_sizes=(5,)), 15), []
    for given in (episodes, episodes[-3:]):
        policy = ENAC(PolicySpec(3, 4), hidden_sizes=(5,), batch_size=3)
        for one in given:
            policy.observe(one)
        policy._step(torch.Generator())
        moved.append(torch.cat([weights.flatten() for weights in policy.learner.policy.parameters()]))
    torch.testing.assert_close(*moved, rtol=0, atol=0)
