"""A2C: the step against autograd of the textbook's formula, weighted targets by their sums, and a toy that is learned."""

import numpy as np
import pytest
import torch

from rlhf_dialog.task_oriented.policies.a2c import A2C, vtrace
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from tests.parts.toy_environments import Colours, best


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


def filled(**args):
    policy = A2C(PolicySpec(3, 4), hidden_sizes=(8,), batch_size=5, **args)
    for one in Sampler(Colours, 0, 2).sample(policy, 30):
        policy.observe(one)
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


@pytest.mark.thorough
@pytest.mark.parametrize("weighted", [False, True])
def test_a2c_learns_the_right_masked_policy_of_a_toy(weighted):
    policy = A2C(PolicySpec(3, 4), hidden_sizes=(32,), lr=5e-3, importance_weights=weighted)
    sampler = Sampler(Colours, 0, 8)
    for _ in range(30):
        for one in sampler.sample(policy, 48):
            policy.observe(one)
        policy.update()
    episodes = run_dialogues(policy, Colours, 99, range(60))
    right = np.concatenate([one.actions == best(one.observations, one.masks) for one in episodes])
    assert right.mean() > 0.85
