"""Layers, draws and files of a learner."""

import numpy as np
import pytest
import torch

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.network import NetworkPair, categorical, load_networks, mlp, save_networks


def learner(seed=0, width=4):
    generator = torch.Generator().manual_seed(seed)
    return NetworkPair(mlp([3, width, 2], generator, 0.01), mlp([3, width, 1], generator, 1.0), lr=0.1)


def test_the_weights_follow_from_the_seed_and_nothing_else():
    torch.manual_seed(5)
    one = learner().state_dict()
    torch.manual_seed(6)
    assert all(torch.equal(x, one[name]) for name, x in learner().state_dict().items())
    assert not torch.equal(learner(1).policy[0].weight, one["policy.0.weight"])
    assert [type(layer).__name__ for layer in learner().policy] == ["Linear", "Tanh", "Linear"]


@pytest.mark.parametrize(
    ("draw", "action"), [(0.0, 1), (0.19, 1), (0.21, 2), (0.69, 2), (0.71, 4), (0.9999999999999999, 4)]
)
def test_one_number_draws_an_action_by_its_share(draw, action):
    logprobs = torch.tensor([[-1e9, np.log(0.2), np.log(0.5), -1e9, np.log(0.3), -1e9]])
    assert categorical(logprobs, [draw]).tolist() == [action]


def test_each_row_has_its_own_draw():
    assert categorical(torch.full((2, 2), 0.5).log(), [0.1, 0.9]).tolist() == [0, 1]


def test_a_step_clips_each_network_by_itself():
    one, x = learner(), torch.ones(1, 3)
    (expected,) = torch.autograd.grad(1e3 * one.policy[2].weight.sum(), [one.policy[2].weight])
    norm = one.step(1e3 * one.policy[2].weight.sum() + 1e-3 * one.critic(x).sum(), 0.5)
    assert norm == pytest.approx(expected.norm().item())
    assert one.policy[2].weight.grad.norm().item() == pytest.approx(0.5)
    assert one.critic[2].bias.grad.item() == pytest.approx(1e-3)
    one.step(1e-3 * one.policy(x).sum() + 1e3 * one.critic[2].weight.sum(), 0.5)
    assert one.policy[2].bias.grad.tolist() == pytest.approx([1e-3, 1e-3])
    assert one.critic[2].weight.grad.norm().item() == pytest.approx(0.5)


def test_what_is_saved_goes_on_exactly(tmp_path):
    one, other = learner(), learner(seed=9)
    for _ in range(3):
        one.step(one.policy(torch.ones(1, 3)).sum() + one.critic(torch.ones(1, 3)).sum(), 0.5)
    save_networks(one, tmp_path, {"count": 3})
    assert load_networks(other, tmp_path) == {"count": 3}
    for each in (one, other):
        each.step(each.policy(torch.ones(1, 3)).sum(), 0.5)
    assert all(torch.equal(x, other.state_dict()[name]) for name, x in one.state_dict().items())


def test_files_of_another_size_are_refused(tmp_path):
    save_networks(learner(), tmp_path, {})
    with pytest.raises(UserError, match="does not fit"):
        load_networks(learner(width=5), tmp_path)
    (tmp_path / "policy.safetensors").write_bytes(b"no weights")
    with pytest.raises(UserError, match="is damaged"):
        load_networks(learner(), tmp_path)
