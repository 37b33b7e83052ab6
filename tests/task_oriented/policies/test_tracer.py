"""TRACER: A2C where the trust region is wide, its edge where it is narrow, and a toy that is learned."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_dialog.task_oriented.policies.a2c import A2C
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from rlhf_dialog.task_oriented.policies.tracer import TRACER
from tests.parts.toy_environments import Colours, best


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gradients(cls, **args):
    """The gradient (P,) of the policy's loss, after it has moved away from its average, and that of its KL from the average."""
    policy, noise = cls(PolicySpec(3, 4), hidden_sizes=(8,), batch_size=5), generator(9)
    policy.args = SimpleNamespace(**vars(policy.args) | args)  # a trust below 0 too, which a user cannot give
    for one in Sampler(Colours, 0, 2).sample(policy, 30):
        policy.observe(one)
    with torch.no_grad():
        for weight in policy.learner.policy.parameters():
            weight += 0.5 * torch.randn(weight.shape, generator=noise)
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


@pytest.mark.thorough
def test_tracer_learns_the_right_masked_policy_of_a_toy():
    policy = TRACER(PolicySpec(3, 4), hidden_sizes=(32,), lr=5e-3)
    sampler = Sampler(Colours, 0, 8)
    for _ in range(30):
        for one in sampler.sample(policy, 48):
            policy.observe(one)
        policy.update()
    episodes = run_dialogues(policy, Colours, 99, range(60))
    right = np.concatenate([one.actions == best(one.observations, one.masks) for one in episodes])
    assert right.mean() > 0.85
