"""Every fast path of evaluation and update against the plain one (tests/plain.py): float64 at 1e-9 on tiny models."""

import math

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_dialog.models import policy as policy_module
from rlhf_dialog.models.load_checks import SingleRowPredictions, use_packing
from rlhf_dialog.models.logprobs import kl_divergence
from rlhf_dialog.models.policy import Critic, Policy, packs, teacher_forced
from rlhf_dialog.models.token_batch import TokenBatch
from tests.parts import plain, policies
from tests.parts.plain import compute_in_float64, new_case, sharing
from tests.parts.policies import new_policy, precision, row, tolerance, with_opinion
from tests.parts.token_batches import critic_values
from tests.parts.zoo import CAPPED, GROUPED, KINDS, NEVER_PACKED, new_lm


@pytest.mark.parametrize("kind", map(row, KINDS))
def test_what_packs_and_whose_head_is_plain(kind):
    policy = new_policy(kind)
    assert packs(policy.lm) == (kind not in NEVER_PACKED)
    assert policy.has_plain_head == (kind not in NEVER_PACKED + CAPPED)
    assert not packs(plain.as_made(policy).lm)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "packing", "shared"),
    [
        *(row(kind, True, True) for kind in KINDS),
        ("gpt2", True, False),
        ("mistral", False, False),
        ("gpt2", False, True),
    ],
)
def test_evaluation_equals_the_plain_path(kind, packing, shared):
    policy, critic = new_policy(kind, packing=packing), with_opinion(Critic(new_lm(kind, 3, packing, precision(kind))))
    critic = critic.to(precision(kind))
    oracle, oracle_critic = plain.as_made(policy), plain.as_made(critic)
    for seed in range(4):
        case = new_case(seed, filtered=seed % 2 == 1, holes=seed < 3)
        if shared:
            case = sharing(case, seed)
        temperature = (1.0, 0.6, 1.7)[seed % 3]
        found = teacher_forced(policy, case.tokens, temperature)
        expected = plain.evaluated(oracle, case, temperature)
        pairs = {name: (getattr(found, name), getattr(expected, name)) for name in ("logprobs", "entropy", "values")}
        values = critic_values(critic, case.tokens)
        pairs["critic"] = values, plain.criticised(oracle_critic, case)
        for name, (ours, theirs) in pairs.items():
            assert ours.dtype == precision(kind)
            mask = case.response_mask
            torch.testing.assert_close(ours[mask], theirs[mask], **tolerance(kind), msg=lambda m, n=name: f"{n}: {m}")
            assert not ours[~mask].any()
        assert teacher_forced(policy, case.tokens, temperature, with_entropy=False).entropy is None


def compare_minibatch(kind, share, seed, policy, critic, reference=None, shared=False, **keys):
    """One minibatch by the trainer and by the plain path: the loss, and the gradient of every parameter."""
    config = policies.settings(temperature=(1.0, 0.7)[seed % 2], use_share_model=share, **keys)
    case = new_case(seed, rows=5, filtered=seed % 2 == 1)
    if shared:
        case = sharing(case, seed)
    old = policies.old_numbers(policy, case, config.temperature)
    totals, fast = policies.fast_gradients(policy, critic, case, old, config, reference)
    oracle, oracle_critic = plain.as_made(policy), critic and plain.as_made(critic)
    oracle.zero_grad()
    loss = plain.loss_of(oracle, oracle_critic, case, old, config, reference and plain.as_made(reference))
    loss.backward()
    assert totals["ppo/loss"] == pytest.approx(loss.item(), abs=tolerance(kind)["atol"])
    slow = policies.gradients(oracle, oracle_critic)
    assert set(fast) == set(slow)
    for name, expected in slow.items():
        expected = torch.zeros(1) if expected is None else expected
        if fast[name] is None:  # a separate critic leaves nothing out, and a layer's unused bias has no gradient
            assert not expected.any(), name
        else:
            torch.testing.assert_close(fast[name], expected, **tolerance(kind), msg=lambda m, n=name: f"{n}: {m}")
    assert sum(g is not None and bool(g.any()) for g in fast.values()) > 0.8 * len(fast)


@pytest.mark.parametrize(
    ("kind", "share", "shared"),
    [*(row(kind, True, True) for kind in KINDS), ("gpt2", False, False), ("granite", False, True)],
)
def test_loss_and_gradients_of_a_minibatch_equal_the_plain_path(kind, share, shared, monkeypatch):
    if shared and precision(kind) == torch.float64:
        compute_in_float64(monkeypatch)
    policy = new_policy(kind, value_head=share)
    critic = None if share else with_opinion(Critic(new_lm(kind, 3, True, precision(kind)))).to(precision(kind))
    for seed, size in enumerate((2, 3, 16)):  # 2 and 3 do not divide 5
        compare_minibatch(kind, share, seed, policy, critic, shared=shared, per_device_microbatch_size=size)


@pytest.mark.parametrize("kind", ["gpt2", "bloom"])
def test_padded_rows_have_the_gradients_of_the_plain_path_too(kind):
    compare_minibatch(kind, True, 1, new_policy(kind, packing=False), None, per_device_microbatch_size=2)
    critic = with_opinion(Critic(new_lm(kind, 3, False, precision(kind)))).to(precision(kind))
    compare_minibatch(kind, False, 2, new_policy(kind, value_head=False, packing=False), critic)


@pytest.mark.parametrize("keys", [{"entropy_coef": 0.0}, {"dual_clip_ppo": True}, {"use_huber_loss": False}])
def test_losses_with_other_settings(keys):
    compare_minibatch("gpt2", True, 3, new_policy("gpt2"), None, per_device_microbatch_size=2, **keys)


@pytest.mark.parametrize(("kind", "chunked"), [pytest.param("gpt2", True, marks=pytest.mark.slow), ("granite", False)])
def test_exact_kl_in_the_loss_equals_the_plain_path(kind, chunked, monkeypatch):
    """Seeds 0 and 1: the whole vocabulary, and the support of a filter."""
    if chunked:
        monkeypatch.setattr(policy_module, "LOGITS_AT_ONCE", 2 * 61)
        if precision(kind) == torch.float64:
            compute_in_float64(monkeypatch)
    for seed in (0, 1):
        reference = new_policy(kind, seed=7, value_head=False).requires_grad_(False)
        keys = {"kl_in": "loss", "kl_coef": 0.6, "per_device_microbatch_size": 2}
        compare_minibatch(kind, True, seed, new_policy(kind), None, reference, shared=chunked, **keys)


def test_kl_divergence_by_hand():
    """(1/2, 1/2) from (1/4, 3/4), and tokens that one of the two never writes."""
    ours, theirs = torch.tensor([[0.5, 0.5], [1.0, 0.0]]).log(), torch.tensor([[0.25, 0.75], [0.25, 0.75]]).log()
    found = kl_divergence(ours, theirs, 1.0, None)
    expected = [0.5 * math.log(2) + 0.5 * math.log(2 / 3), math.log(4)]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    on_one = kl_divergence(ours, theirs, 1.0, torch.tensor([[0, 1], [0, -1]]))
    assert on_one.tolist() == pytest.approx([expected[0], 0.0], abs=1e-6)  # the only kept token of both


@pytest.mark.parametrize(("kind", "filtered"), [("gpt2", True), ("granite", False)])
def test_logits_in_chunks_change_nothing(kind, filtered, monkeypatch):
    """Chunks of 1, 2 and 5 positions, recomputed on the way back: the same numbers and gradients."""
    policy, case = new_policy(kind), new_case(4 + filtered, filtered=filtered)
    chunks, found, predict = [], [], policy_module.predict
    monkeypatch.setattr(policy_module, "predict", lambda x, *rest: chunks.append(len(x)) or predict(x, *rest))
    for positions in (100, 1, 2, 5):
        monkeypatch.setattr(policy_module, "LOGITS_AT_ONCE", positions * 61 + 60)
        assert policy.positions_at_once == positions
        policy.zero_grad()
        chunks.clear()
        result = teacher_forced(policy, case.tokens, 0.8)
        assert max(chunks) == min(positions, case.response_mask.sum())
        (result.logprobs.sum() + 0.5 * result.entropy.sum() + result.values.sum()).backward()
        found.append([result.logprobs, result.entropy, result.values, *(p.grad.clone() for p in policy.parameters())])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("chunk", [4, 8192])  # padded, packed
def test_a_value_head_reads_hidden_states_where_the_library_has_the_model_itself_for_its_base(chunk):
    layers = {"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": chunk}
    config = AutoConfig.for_model("llama4_text", **GROUPED, **layers, num_local_experts=2, intermediate_size_mlp=24)
    lm = AutoModelForCausalLM.from_config(config).eval()
    assert lm.base_model is lm
    use_packing(lm, SingleRowPredictions(lm))
    assert packs(lm) == (chunk == 8192)
    case, policy, critic = new_case(0), with_opinion(Policy(lm, with_value_head=True)), with_opinion(Critic(lm))
    ids, mask = case.tokens.prompt_ids[:1], case.tokens.prompt_mask[:1]
    response = case.tokens.response_ids[:1]
    row = torch.cat([ids[mask], response[0]])[None]
    hidden = lm.model(input_ids=row).last_hidden_state[:, int(mask.sum()) - 1 : -1]
    alone = TokenBatch(ids, mask, response, torch.ones_like(response, dtype=torch.bool))
    for found, head in (
        (teacher_forced(policy, alone, 1.0).values, policy.value_head),
        (critic_values(critic, alone), critic.value_head),
    ):
        torch.testing.assert_close(found, head(hidden), atol=1e-5, rtol=0)
