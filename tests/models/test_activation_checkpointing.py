"""Activation checkpointing: the same losses and gradients, less kept, also in eval mode."""

import copy

import pytest
import torch
from torch import nn

from rlhf_dialog.errors import UserError
from rlhf_dialog.models.loading import Critic, Policy, recompute_layers
from rlhf_dialog.models.packing import ATTENTION
from rlhf_dialog.models.policy import teacher_forced
from rlhf_dialog.models.token_batch import TokenBatch
from tests.parts.saved_models import EPISODES
from tests.parts.tiny import gpt2, llama
from tests.parts.token_batches import critic_values


def kept(compute):
    """The bytes that autograd keeps for the way back, each storage once."""
    storages = {}

    def pack(x):
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = compute()
    return loss, sum(storages.values())


def heads(model):
    torch.manual_seed(0)
    nn.init.normal_(model.value_head.weight)
    return model.double()


@pytest.mark.parametrize(("make", "packs"), [(gpt2, True), (llama, False)])
def test_the_same_losses_and_gradients(monkeypatch, make, packs):
    """In float64, with the attention of packed rows and with the library's own; and no random number is drawn for it."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    lm = make(initializer_range=0.3).double().eval()
    if not packs:
        lm.set_attn_implementation("sdpa")
    assert (lm.config._attn_implementation == ATTENTION) is packs
    found = []
    for again in (False, True):
        policy, critic = heads(Policy(copy.deepcopy(lm), True)), heads(Critic(copy.deepcopy(lm)))
        for trunk in (policy.lm.base_model, critic.trunk) if again else ():
            recompute_layers(trunk)
        result = teacher_forced(policy, TokenBatch(*EPISODES), 0.9)
        values = critic_values(critic, TokenBatch(*EPISODES))
        loss = (result.logprobs.sin() + result.entropy.cos() + result.values.sin()).sum()
        loss.backward()
        values.sin().sum().backward()
        gradients = {f"{i}{n}": p.grad for i, m in enumerate((policy, critic)) for n, p in m.named_parameters()}
        found.append((loss, values, gradients))
    assert (found[0][0] - found[1][0]).abs() < 1e-9
    assert torch.allclose(found[0][1], found[1][1], rtol=0, atol=1e-9)
    assert sum(g is not None and g.norm() > 0 for g in found[0][2].values()) > 20
    for name, expected in found[0][2].items():
        if expected is not None:
            assert torch.allclose(found[1][2][name], expected, rtol=0, atol=1e-9), name


def test_less_is_kept():
    """Of each layer but its input, which is a twentieth or so of what it keeps."""
    lm = llama(num_hidden_layers=12).eval()
    ids, mask = torch.arange(120).view(2, 60), torch.ones(2, 60, dtype=torch.bool)
    weights = sum(p.numel() * 4 for p in lm.parameters())
    sizes = []
    for again in (False, True):
        policy = Policy(copy.deepcopy(lm), True)
        if again:
            recompute_layers(policy.lm.base_model)
        batch = TokenBatch(ids, mask, ids[:, :3], mask[:, :3])
        loss, size = kept(lambda policy=policy, batch=batch: teacher_forced(policy, batch, 1.0).logprobs.sum())
        sizes.append(size - weights)
        loss.backward()
    assert 0 < sizes[1] + weights < (sizes[0] + weights) / 2
    with torch.no_grad():
        assert kept(lambda: teacher_forced(policy, TokenBatch(*EPISODES), 1.0).logprobs.sum())[1] == 0


def test_a_model_without_layers_is_refused():
    with pytest.raises(UserError, match="activation_checkpointing: Linear has no layers"):
        recompute_layers(nn.Linear(2, 2))
