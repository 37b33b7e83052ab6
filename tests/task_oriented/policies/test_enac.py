"""eNAC: least squares by numpy, the known natural gradient of a bandit, steps of the wanted length, and a toy."""

import numpy as np
import pytest
import torch

from rlhf_dialog.task_oriented.policies.base import Episode, PolicySpec
from rlhf_dialog.task_oriented.policies.enac import ENAC, least_squares
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from tests.parts.toy_environments import Colours, best

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


def test_the_natural_gradient_of_a_bandit_is_the_worth_of_its_arms():
    policy = bandit()
    natural = least_squares(*policy.compute_gradients(policy.replay.newest(3)), 1e-9)
    np.testing.assert_allclose(natural[-3:], WORTH - WORTH.mean(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(natural[:-3], 0.0, atol=1e-6)


def test_a_step_follows_it_and_moves_the_policy_by_the_wanted_divergence():
    policy = bandit(max_kl=1e-4)
    policy._step(torch.Generator())
    after = policy.learner.policy(torch.zeros(1, 1)).softmax(dim=1)[0].detach().numpy()
    moved = np.log(after)
    np.testing.assert_allclose((moved - moved.mean()) / moved.std(), (WORTH - WORTH.mean()) / WORTH.std(), rtol=1e-3)
    assert np.sum(np.log(1 / 3 / after)) / 3 == pytest.approx(1e-4, rel=0.05)


def test_a_dialogue_has_the_gradient_of_its_discounted_log_probability():
    policy = ENAC(PolicySpec(3, 4), hidden_sizes=(5,), gamma=0.8)
    for one in Sampler(Colours, 0, 3).sample(policy, 45):
        policy.observe(one)
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


@pytest.mark.thorough
def test_enac_learns_the_right_masked_policy_of_a_toy():
    policy = ENAC(PolicySpec(3, 4), hidden_sizes=(16,), steps_per_dialogue=0.125)
    sampler = Sampler(Colours, 0, 8)
    before = after = 0.0
    for number in range(31):
        if number in (0, 30):
            episodes = run_dialogues(policy, Colours, 99, range(60))
            right = np.concatenate([one.actions == best(one.observations, one.masks) for one in episodes])
            before, after = after, right.mean()
        for one in sampler.sample(policy, 48):
            policy.observe(one)
        policy.update()
    assert after > max(0.75, before + 0.2)
