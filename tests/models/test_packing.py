"""The attention of packed rows stays within a row and behind a token, also where rows share a prompt."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import pad

from rlhf_dialog.models import packing as packing_module
from rlhf_dialog.models import token_batch
from rlhf_dialog.models.packing import (
    ATTENTION,
    Decoding,
    KeyValues,
    Prompting,
    causal_attention,
    packed_attention,
    run_packed,
)
from rlhf_dialog.models.policy import Policy, teacher_forced
from tests.parts.masks import masks_of
from tests.parts.plain import new_case
from tests.parts.token_batches import prompts_of
from tests.parts.zoo import new_lm


def slow_attention(query, key, value, scale, window):
    """(B, H, L, D), one token at a time."""
    group = query.shape[1] // key.shape[1]
    out = torch.zeros(*query.shape[:3], value.shape[3], dtype=query.dtype)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            for i in range(query.shape[2]):
                first = 0 if window is None else max(0, i - window + 1)
                scores = key[b, h // group, first : i + 1] @ query[b, h, i] * scale
                out[b, h, i] = scores.softmax(dim=0) @ value[b, h // group, first : i + 1]
    return out


def random(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(
    ("window", "heads", "dtype"),
    [
        (None, (4, 2), torch.float64),
        (1, (2, 1), torch.float64),
        (3, (4, 2), torch.bfloat16),
        (7, (2, 2), torch.float64),
    ],
)
def test_causal_attention_equals_one_token_at_a_time(window, heads, dtype):
    """bfloat16 takes the explicit way (torch's kernel takes the sums in float32, so it is nearer)."""
    torch.manual_seed(0)
    query, key, value = (random(2, h, 7, 4, dtype=dtype) for h in (heads[0], heads[1], heads[1]))
    found = causal_attention(query, key, value, 0.7, window)
    expected = slow_attention(query.double(), key.double(), value.double(), 0.7, window)
    exact = dtype == torch.float64
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-12 if exact else 0.04)


def test_gradients_of_the_explicit_attention():
    """In float64 the explicit way must be taken by force: it is for bfloat16."""
    torch.manual_seed(0)
    inputs = [random(2, 2, 5, 4, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
    twins = [x.detach().double().requires_grad_() for x in inputs]
    weights = random(2, 2, 5, 4)
    (causal_attention(*inputs, 0.5, None).double() * weights).sum().backward()
    scores = twins[0] @ twins[1].transpose(2, 3) * 0.5
    ahead = torch.ones(5, 5, dtype=torch.bool).triu(1)
    (scores.masked_fill(ahead, -torch.inf).softmax(-1) @ twins[2] * weights).sum().backward()
    for x, y in zip(inputs, twins, strict=True):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=0.05, atol=0.05)


def rows_of(lengths):
    """Packed rows of these lengths; the ids do not matter."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return prompts_of(torch.zeros_like(mask, dtype=torch.long), mask).pack_prompts()


@pytest.mark.parametrize(("window", "extra", "together"), [(None, 3, 2), (2, 0, 2), (2, 3, 4)])
def test_prompting_and_decoding_equal_each_row_alone(window, extra, together, monkeypatch):
    """Prompts of 3, 1 and 4 tokens in a packed sequence with `extra` tokens of rounding, then three more tokens each."""
    monkeypatch.setattr(token_batch, "ROWS_TOGETHER", together)
    torch.manual_seed(1)
    lengths, steps, heads, kv_heads, width = [3, 1, 4], 3, 4, 2, 8
    whole = [tuple(random(1, h, n + steps, width) for h in (heads, kv_heads, kv_heads)) for n in lengths]
    expected = [slow_attention(*row, 0.5, window)[0].transpose(0, 1) for row in whole]
    cache = KeyValues(torch.tensor(lengths), steps)
    prompts = (torch.cat([row[i][:, :, :n] for row, n in zip(whole, lengths, strict=True)], dim=2) for i in range(3))
    out = Prompting(rows_of(lengths), cache).attend(5, *(pad(x, (0, 0, 0, extra)) for x in prompts), 0.5, window)
    assert out.shape == (1, 8 + extra, heads, width)
    read = torch.cat([row[:n] for row, n in zip(expected, lengths, strict=True)])
    torch.testing.assert_close(out[0, :8], read, rtol=0, atol=1e-12)
    assert not out[0, 8:].any()
    rows = [0, 1, 2]
    for step in range(steps):
        if step == 1:  # the first row leaves
            rows = [1, 2]
            cache.keep_rows(torch.tensor([False, True, True]))
        new = [torch.stack([whole[b][i][0, :, lengths[b] + step] for b in rows], dim=1).unsqueeze(0) for i in range(3)]
        out = Decoding(cache).attend(5, *new, 0.5, window)
        cache.grow()
        wanted = torch.stack([expected[b][lengths[b] + step] for b in rows])
        torch.testing.assert_close(out[0], wanted, rtol=0, atol=1e-12)


def test_key_values_by_hand():
    cache = KeyValues(torch.tensor([2, 1, 3]), num_new=2)
    assert cache.width == 5
    for first, rows in ((0, 2), (2, 1)):
        keys = torch.arange(1.0, 1 + 3 * rows).view(rows, 1, 3, 1) + 10 * first
        cache.begin(7, first, keys, -keys)
    keys, values = cache.append(7, torch.tensor([100.0, 200, 300]).view(3, 1, 1), torch.zeros(3, 1, 1))
    assert keys[:, 0, :, 0].tolist() == [[1, 2, 100, 0], [4, 200, 6, 0], [21, 22, 23, 300]]
    assert values[:, 0, :, 0].tolist() == [[-1, -2, 0, 0], [-4, 0, -6, 0], [-21, -22, -23, 0]]
    cache.grow()
    cache.keep_rows(torch.tensor([True, False, True]))
    assert cache.lengths.tolist() == [3, 4]
    keys, _ = cache.append(7, torch.tensor([101.0, 301]).view(2, 1, 1), torch.zeros(2, 1, 1))
    assert keys[:, 0, :, 0].tolist() == [[1, 2, 100, 101, 0], [21, 22, 23, 300, 301]]


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
    packing = Prompting(rows_of([2]))
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


def test_rounding_of_the_packed_length_changes_nothing(monkeypatch):
    policy, case, found, lengths = Policy(new_lm("mistral")), new_case(3), [], []
    assert policy.has_plain_head  # it has been tried
    hook = policy.lm.base_model.register_forward_pre_hook(
        lambda _, args, options: lengths.append(options["input_ids"].shape[1]), with_kwargs=True
    )
    for size in (1, 64, 7, len(case.tokens.pack().ids)):
        monkeypatch.setattr(packing_module, "ROUND_TO", size)
        policy.zero_grad()
        result = teacher_forced(policy, case.tokens, 1.0)
        (result.logprobs.sum() + result.entropy.sum()).backward()
        found.append([result.logprobs, result.entropy, *(p.grad.clone() for p in policy.parameters())])
    hook.remove()
    real = len(case.tokens.pack().ids)
    assert lengths == [real, 64, -(-real // 7) * 7, real]
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
