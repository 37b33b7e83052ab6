"""Generation, packed and padded: `model.generate` token for token, the plain path's numbers, and nothing drawn otherwise."""

import pytest
import torch

from rlhf_dialog.models import generation
from rlhf_dialog.models.generation import (
    GenerationLimits,
    PackedDecoder,
    Responder,
    Sampling,
)
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.policy import Critic, packs
from rlhf_dialog.training.episodes import Episodes
from rlhf_dialog.training.reading import predict_columns
from tests.parts import plain, policies
from tests.parts.plain import new_case, sharing
from tests.parts.policies import Ends, answered, as_case, new_policy, precision, row
from tests.parts.token_batches import columns_of
from tests.parts.zoo import KINDS, PAD, new_lm

FILTERS = ({}, {"top_k": 8}, {"top_p": 0.8}, {"top_k": 20, "top_p": 0.9})
WAYS = [*(row(kind, True) for kind in KINDS), ("gpt2", False)]


@pytest.mark.parametrize(("kind", "packing"), WAYS)
def test_greedy_equals_hugging_face(kind, packing):
    policy = new_policy(kind, packing=packing)
    case = plain.without_gaps(new_case(5, rows=6))
    ids, mask = case.prompt_ids, case.prompt_mask
    usual = plain.as_made(policy.lm)
    stop = Ends()
    options = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": PAD, "eos_token_id": stop.end_ids}
    expected = usual.generate(ids, attention_mask=mask.long(), **options)[:, ids.shape[1] :]
    for rows, prompts in ((128, 16), (4, 3), (1, 1)):
        found = answered(policy, case, Sampling(12, greedy=True), stop, rows_at_once=rows, prompts_at_once=prompts)
        assert torch.equal(found.tokens.response_ids, expected)
    assert packs(policy.lm) == (kind != "bloom" and packing)


@torch.no_grad()
@pytest.mark.parametrize(("kind", "packing"), WAYS)
def test_what_sampling_knows_equals_the_plain_path(kind, packing):
    """Log-probabilities, entropies and values of tokens as they were drawn, of prompts with gaps and rows of one token."""
    policy = new_policy(kind, packing=packing)
    oracle, lengths = plain.as_made(policy), set()
    for seed, filters in enumerate(FILTERS):
        case = new_case(seed, rows=7, holes=kind not in ("mistral", "qwen2") or packing)
        sampling = Sampling(9, temperature=(1.0, 0.7)[seed % 2], **filters)
        found = answered(policy, case, sampling, seed=seed, rows_at_once=5, prompts_at_once=2)
        expected = plain.evaluated(oracle, as_case(case, found), sampling.temperature)
        mask = found.tokens.response_mask
        for name in ("logprobs", "entropy", "values"):
            ours, theirs = columns_of(found)[name], getattr(expected, name)
            assert not ours[~mask].any()
            torch.testing.assert_close(ours[mask], theirs[mask], **policies.tolerance(kind))
        lengths |= set(mask.sum(dim=1).tolist())
        support = found.tokens.support
        assert (support is None) == (not filters)
        assert support is None or support.shape[2] == (support >= 0).sum(dim=2).max()
    assert len(lengths) > 4  # some rows left the batch early


@pytest.mark.parametrize(
    ("kind", "filters", "packing"),
    [("gpt2", FILTERS[3], True), ("mistral", {}, True), ("llama_grouped", FILTERS[3], False), ("bloom", {}, True)],
)
def test_the_same_random_numbers_give_the_same_tokens(kind, filters, packing, monkeypatch):
    """Whatever stands beside a row, and whether those that have ended leave."""
    policy, case = new_policy(kind, packing=packing), new_case(3, rows=9, holes=kind != "mistral")
    sampling = Sampling(10, **filters)
    first = answered(policy, case, sampling)
    dropped = []
    keep_rows = PackedDecoder.keep_rows
    monkeypatch.setattr(PackedDecoder, "keep_rows", lambda self, rows: dropped.append(rows) or keep_rows(self, rows))
    options = [{"rows_at_once": 4, "prompts_at_once": 3}, {"rows_at_once": 1}, {"prompts_at_once": 1}, {}]
    for number, kept in enumerate(options):
        monkeypatch.setattr(PackedDecoder, "can_drop_rows", number != 2)
        found = answered(policy, case, sampling, **kept)
        for name, x in columns_of(first).items():
            y = columns_of(found)[name]
            if x is None or not x.is_floating_point():
                assert x is y is None or torch.equal(x, y), name
            else:
                torch.testing.assert_close(x, y, **policies.tolerance(kind))
    assert bool(dropped) == (packing and kind != "bloom")
    assert not torch.equal(first.tokens.response_ids, answered(policy, case, sampling, seed=1).tokens.response_ids)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "filters", "share"), [("gpt2", FILTERS[3], True), ("mistral", {}, False), ("granite", FILTERS[3], False)]
)
def test_reference_and_critic_of_a_rollout_equal_the_plain_path(kind, filters, share):
    """Also what a filter hides; responses with holes, and microbatches that do not divide the rows."""
    policy, reference = new_policy(kind, value_head=share), new_policy(kind, seed=4, value_head=False)
    critic = None
    if not share:
        critic = policies.with_opinion(Critic(new_lm(kind, 3, True, precision(kind)))).to(precision(kind))
    case = sharing(new_case(6, rows=5), 6)
    responses = answered(policy, case, Sampling(7, 0.8, **filters))
    mask = responses.tokens.response_mask
    mask &= torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) > 0.2
    case, models = as_case(case, responses), Models(policy, critic, reference, None)
    responder = Responder(policy, None, Sampling(7, 0.8), None, GenerationLimits(prompts_at_once=2))
    tensors = predict_columns(models, responder, Episodes([], responses), keep_features=False)
    oracle, oracle_reference = plain.as_made(policy), plain.as_made(reference)
    expected = {"ref_logprobs": plain.evaluated(oracle_reference, case, 0.8).logprobs}
    own = plain.evaluated(oracle, case, 0.8).values
    expected["values"] = own if share else plain.criticised(plain.as_made(critic), case)
    if filters:
        expected["kl_full"], expected["ref_support_mass"] = plain.unfiltered(oracle, oracle_reference, case, 0.8)
    assert set(tensors) == {"logprobs", "entropy", *expected}
    for name, theirs in expected.items():
        ours = tensors[name]
        torch.testing.assert_close(ours[mask], theirs[mask], **policies.tolerance(kind))
        assert name == "values" or not ours[~mask].any()


def test_a_random_number_picks_the_token_that_it_falls_on():
    """By hand over probabilities 0, 1/4, 0, 1/2, 1/4, 0: never a token without probability."""
    probabilities = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]] * 4)
    uniform = torch.tensor([0.0, 0.25, 0.6, 1 - 2**-53], dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        assert generation._draw(probabilities.to(dtype), uniform)[0].tolist() == [1, 3, 3, 4]


def test_rounding_leaves_no_random_number_behind_the_last_token():
    """Probabilities of float32 add up to a little less or more than 1."""
    sums = set()
    for count in range(2, 200):
        scores = torch.zeros(1, count)
        sums.add(scores.softmax(dim=-1).double().sum().item())
        scores = torch.cat([scores, torch.full((1, 3), -torch.inf)], dim=1)
        largest = torch.tensor([1 - 2**-53], dtype=torch.float64)  # that torch.rand can give
        assert generation._draw(scores.softmax(dim=-1), largest)[0].item() == count - 1
    assert min(sums) < 1 < max(sums)


def test_one_random_number_for_every_token(monkeypatch):
    """From torch's global state, as one table: rows do not take numbers from each other."""
    policy, case, used = new_policy("gpt2"), new_case(3, rows=5), []
    draw = generation._draw
    monkeypatch.setattr(generation, "_draw", lambda x, u: used.append(u) or draw(x, u))
    answered(policy, case, Sampling(4), Ends([]), seed=3)
    torch.manual_seed(3)
    assert torch.equal(torch.stack(used, dim=1), torch.rand(5, 4, dtype=torch.float64))
