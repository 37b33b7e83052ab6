"""The attention of packed rows, beside what test_policy and test_decoding see of it."""

from types import SimpleNamespace

import pytest
import torch

from rlhf_dialog.models import packing as packing_module
from rlhf_dialog.models.packing import (
    ATTENTION,
    Prompting,
    causal_attention,
    packed_attention,
    run_packed,
)
from rlhf_dialog.models.policy import Policy, teacher_forced
from tests.parts.plain import new_case
from tests.parts.token_batches import masks_of, prompts_of
from tests.parts.zoo import new_lm


def test_gradients_of_the_explicit_attention():
    """In float64 the explicit way must be taken by force: it is for bfloat16."""
    torch.manual_seed(0)
    inputs = [torch.randn(2, 2, 5, 4, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    twins = [x.detach().double().requires_grad_() for x in inputs]
    weights = torch.randn(2, 2, 5, 4, dtype=torch.float64)
    (causal_attention(*inputs, 0.5, None).double() * weights).sum().backward()
    scores = twins[0] @ twins[1].transpose(2, 3) * 0.5
    ahead = torch.ones(5, 5, dtype=torch.bool).triu(1)
    (scores.masked_fill(ahead, -torch.inf).softmax(-1) @ twins[2] * weights).sum().backward()
    for x, y in zip(inputs, twins, strict=True):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=0.05, atol=0.05)


def test_without_packing_it_is_the_librarys_attention():
    """The saved agent, `generate` and supervised training call the model in the usual way."""
    ours, usual = new_lm("mistral"), new_lm("mistral", packing=False)
    assert (ours.config._attn_implementation, usual.config._attn_implementation) == (ATTENTION, "sdpa")
    ids, mask = torch.randint(2, 61, (3, 9)), masks_of("000111111", "111111111", "011111111")
    inputs = {"attention_mask": mask.long(), "position_ids": (mask.long().cumsum(1) - 1).clamp(min=0)}
    with torch.no_grad():
        for options in ({}, inputs):
            assert torch.equal(ours(ids, **options).logits, usual(ids, **options).logits)


def test_arguments_that_would_have_to_be_ignored_are_refused():
    x = torch.zeros(1, 1, 2, 4)
    module = SimpleNamespace(layer_idx=0)
    packing = Prompting(prompts_of(torch.zeros(1, 2, dtype=torch.long), masks_of("11")).pack_prompts())
    for name in packing_module.UNKNOWN:
        packed_attention(module, x, x, x, None, packing=packing, **{name: None})
        with pytest.raises(NotImplementedError, match=name):
            packed_attention(module, x, x, x, None, packing=packing, **{name: 1.0})


def test_attention_under_autocast_has_one_precision():
    """Rotary positions make float32 of bfloat16 queries and keys; the cache and the attention are as wide as the values."""
    seen = []

    class Looking(Prompting):
        def attend(self, layer, *inputs):
            seen.extend(x.dtype for x in inputs[:3])
            return super().attend(layer, *inputs)

    lm, packed = new_lm("llama", dtype=torch.float32), new_case(0).tokens.pack()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        run_packed(lm, packed.ids, packed.positions, Looking(packed))
    assert set(seen) == {torch.bfloat16}


def test_the_packed_length_is_rounded_and_changes_nothing(monkeypatch):
    policy, case, found, lengths = Policy(new_lm("mistral")), new_case(3), [], []
    assert policy.has_plain_head  # it has been tried
    policy.lm.base_model.register_forward_pre_hook(
        lambda _, args, options: lengths.append(options["input_ids"].shape[1]), with_kwargs=True
    )
    for size in (1, 7, 64):
        monkeypatch.setattr(packing_module, "ROUND_TO", size)
        found.append(teacher_forced(policy, case.tokens, 1.0).logprobs)
    real = len(case.tokens.pack().ids)
    assert lengths == [real, -(-real // 7) * 7, 64]
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=0, atol=1e-12)
