"""The fast path against the plain one on models of the usual sizes and precisions: float32 at 1e-4, bfloat16 as measured."""

import functools

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.models.loading import load_causal_lm
from rlhf_dialog.models.policy import Policy, packs, teacher_forced
from tests.parts import plain
from tests.parts.plain import new_case
from tests.parts.policies import Ends, answered, as_case, fast_gradients, gradients, old_numbers, settings, with_opinion

pytestmark = pytest.mark.slow

SIZES = {"gpt2": 7_000_000, "llama": 3_000_000}


@functools.cache
def folder_of(name, root):
    torch.manual_seed(0)
    if name == "gpt2":
        config = GPT2Config(vocab_size=6000, n_embd=256, n_layer=7, n_head=4, n_positions=128, initializer_range=0.05)
        GPT2LMHeadModel(config).save_pretrained(root)
    else:
        sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
        ids = {"vocab_size": 3000, "num_key_value_heads": 4, "tie_word_embeddings": False}
        LlamaForCausalLM(LlamaConfig(**sizes, **ids, initializer_range=0.06)).save_pretrained(root)
    return root


@pytest.fixture(scope="module", params=SIZES)
def lm(request, tmp_path_factory):
    """A model as a run loads it: packed, with the fused activation, and by oneDNN where that is faster."""
    name = request.param
    model = load_causal_lm(str(folder_of(name, tmp_path_factory.mktemp(name))), "model_path")
    assert packs(model)
    assert sum(p.numel() for p in model.parameters()) > SIZES[name]
    return model


def long_case(lm, seed=0):
    """Responses of up to 20 tokens, drawn by the model, to prompts of 1 to 7 and of 40 tokens."""
    vocabulary = lm.config.vocab_size
    case = new_case(seed, min(vocabulary, 500), rows=6)
    more = torch.randint(2, 500, (6, 33), generator=torch.Generator().manual_seed(seed))
    case.prompt_ids = torch.cat([more, case.prompt_ids], dim=1)
    case.prompt_mask = torch.cat([torch.arange(6).unsqueeze(1).expand(6, 33) % 3 == 1, case.prompt_mask], dim=1)
    stop = Ends(range(2, vocabulary, 15))
    return case, answered(with_opinion(Policy(lm, True)), case, Sampling(20), stop, seed=seed, rows_at_once=4)


def largest(x, y, mask):
    return (x - y)[mask].abs().max().item()


@torch.no_grad()
def test_float32_evaluation_and_sampling(lm):
    torch.manual_seed(0)
    policy = with_opinion(Policy(lm, True))
    case, _ = long_case(lm)
    for seed, filters in enumerate(({}, {"top_k": 30})):
        sampling = Sampling(20, 0.8, **filters)
        found = answered(policy, case, sampling, Ends(range(2, lm.config.vocab_size, 15)), seed=seed)
        given = as_case(case, found)
        forced = teacher_forced(policy, given.tokens, 0.8)
        expected = plain.evaluated(plain.as_made(policy), given, 0.8)
        for name in ("logprobs", "entropy", "values"):
            assert largest(getattr(forced, name), getattr(expected, name), found.tokens.response_mask) < 1e-4, name
            assert largest(getattr(found, name), getattr(expected, name), found.tokens.response_mask) < 1e-4, name


def test_float32_loss_and_gradients(lm):
    """Of every parameter, 1e-4 of the largest of its numbers."""
    torch.manual_seed(0)
    policy, config = with_opinion(Policy(lm, True)), settings(per_device_microbatch_size=4)
    case, found = long_case(lm)
    case = as_case(case, found)
    old = old_numbers(policy, case, 1.0)
    totals, fast = fast_gradients(policy, None, case, old, config)
    fast = {name: gradient.clone() for name, gradient in fast.items()}
    oracle = plain.as_made(policy)
    oracle.zero_grad()
    loss = plain.loss_of(oracle, None, case, old, config)
    loss.backward()
    assert totals["ppo/loss"] == pytest.approx(loss.item(), abs=1e-4)
    for name, expected in gradients(oracle, None).items():
        assert (fast[name] - expected).abs().max() <= 1e-4 * expected.abs().max() + 1e-9, name
    policy.zero_grad()


# Under bfloat16 (`use_amp`), from float32, as measured on an AMD EPYC with torch 2.13, over some 300 tokens: mean and largest
# |difference| of log-probabilities.
#          | plain path in bfloat16 | packed, teacher-forced | sampled         | sampled from forced
# gpt2     | 0.0048  0.019          | 0.0052  0.022          | 0.0050  0.019   | 0.0044  0.016
# llama    | 0.0105  0.041          | 0.0107  0.052          | 0.0104  0.041   | 0.0077  0.032


@torch.no_grad()
def test_bfloat16_differs_no_more_than_the_plain_path_does(lm):
    oracle, rough = plain.as_made(Policy(lm)), Policy(lm, use_amp=True)
    found = {"plain": [], "forced": [], "sampled": [], "ratio": []}
    for seed in range(4):
        case, _ = long_case(lm, seed)
        drawn = answered(rough, case, Sampling(20), Ends(range(2, lm.config.vocab_size, 15)), seed=seed)
        case = as_case(case, drawn)
        expected = plain.evaluated(oracle, case, 1.0).logprobs
        with torch.autocast("cpu", torch.bfloat16):
            slow = plain.evaluated(oracle, case, 1.0).logprobs
        forced, mask = teacher_forced(rough, case.tokens, 1.0).logprobs, case.response_mask
        assert forced.dtype == drawn.logprobs.dtype == torch.float32
        pairs = {"plain": (slow, expected), "forced": (forced, expected), "sampled": (drawn.logprobs, expected)}
        for name, (x, y) in (pairs | {"ratio": (drawn.logprobs, forced)}).items():
            found[name].append((x - y)[mask].abs())
    sizes = {name: torch.cat(parts) for name, parts in found.items()}
    mean = sizes.pop("plain").mean().item()
    for name, size in sizes.items():
        assert 0 < size.mean() < 1.3 * mean, name
        assert size.max() < 15 * mean, name
