"""`respond` on the pretended GPU: the tokens of the CPU, no tensor on the wrong device, and one wait at each look."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from rlhf_dialog.data.prompts import PromptEncoder
from rlhf_dialog.models.generation import GenerationLimits, Sampling, StopRule, respond
from rlhf_dialog.models.policy import Policy, teacher_forced
from rlhf_dialog.models.responder import Responder
from rlhf_dialog.models.token_batch import TokenBatch
from tests.parts.pretended_gpu import pretended_gpu
from tests.parts.tiny import byte_tokenizer, gpt2, llama, packed
from tests.parts.token_batches import columns_of

PAD, ENDS = 256, [257, *range(0, 250, 12)]
STEPS = 12
IDS = {"vocab_size": 259, "pad_token_id": PAD, "eos_token_id": 257, "bos_token_id": None, "initializer_range": 0.3}
WIDE = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}


def mistral():
    torch.manual_seed(0)
    return packed(MistralForCausalLM(MistralConfig(**IDS, **WIDE, num_hidden_layers=4, sliding_window=6)))


SHAPES = {
    "gpt2": lambda: gpt2(n_layer=3, initializer_range=0.3),
    "llama": lambda: llama(num_hidden_layers=1, initializer_range=0.3),
    "mistral": mistral,
}
SAMPLINGS = {
    "plain": Sampling(STEPS),
    "greedy": Sampling(STEPS, greedy=True),
    "filtered": Sampling(STEPS, 0.7, top_k=9, top_p=0.8),
}


def new_policy(shape):
    policy = Policy(SHAPES[shape](), with_value_head=True).eval()
    policy.lm.generation_config.eos_token_id = ENDS
    return policy


def on_gpu(shape):
    policy = new_policy(shape).to("cuda")
    assert policy.has_plain_head  # tried once, which waits
    return policy


def prompts(device):
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(0, 250, (n,), generator=generator).tolist() for n in (5, 17, 9, 12, 3)]
    return TokenBatch.from_prompts(ids, PAD, device)


def answer(policy, sampling, separator_token=True, **options):
    """Responses on the device of the policy, with the same random numbers each time."""
    stop = StopRule(policy, byte_tokenizer(separator_token), "<EOU>")
    batch = prompts(policy.lm.device)
    torch.manual_seed(1)
    return respond(policy, batch, sampling, stop, GenerationLimits(**options))


def same(found, expected):
    for name, x in columns_of(expected).items():
        y = columns_of(found)[name]
        if x is None or not x.is_floating_point():
            assert x is y is None or torch.equal(x, y.cpu()), name
        else:
            torch.testing.assert_close(x, y.cpu(), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "name", "separator_token"),
    [("gpt2", "plain", True), ("gpt2", "filtered", False), ("llama", "greedy", False), ("mistral", "plain", False)],
)
def test_a_response_waits_once_a_look_for_any_number_of_layers(shape, name, separator_token):
    sampling = SAMPLINGS[name]
    expected = answer(new_policy(shape), sampling, separator_token)
    with pretended_gpu() as gpu:
        policy = on_gpu(shape)
        gpu.reset()
        found = answer(policy, sampling, separator_token)
        waits, report = gpu.num_waits, gpu.report()
        same(found, expected)
    assert waits == math.ceil(found.tokens.response_ids.shape[1] / 8), report
    assert len(set(found.tokens.response_mask.sum(dim=1).tolist())) > 1


@pytest.mark.parametrize("options", [{"rows_at_once": 2, "prompts_at_once": 1}, {"look_every": 5}])
def test_neither_rows_nor_prompts_at_once_nor_looks_change_the_response(options):
    sampling = Sampling(STEPS, top_p=0.8)
    expected = answer(new_policy("llama"), sampling)
    with pretended_gpu():
        same(answer(on_gpu("llama"), sampling, **options), expected)


def test_a_model_that_does_not_pack_waits_once_a_token():
    """The library looks at its mask at each step, and makes its cache, once in each layer."""

    def padded():
        policy = new_policy("gpt2")
        policy.lm.set_attn_implementation("sdpa")
        return policy

    expected = answer(padded(), SAMPLINGS["filtered"])
    with pretended_gpu() as gpu:
        policy = padded().to("cuda")
        gpu.reset()
        found = answer(policy, SAMPLINGS["filtered"])
        prompt = 2 * len(policy.lm.transformer.h) + 5  # the cache, once a layer; prompts, their masks
        assert gpu.num_waits <= prompt + STEPS + math.ceil(STEPS / 8), gpu.report()
        same(found, expected)


@pytest.mark.parametrize("separator_token", [True, False])
def test_while_ends_are_forbidden_only_a_separator_of_text_waits_for_each_token(separator_token):
    sampling = Sampling(STEPS, min_new_tokens=6)
    expected = answer(new_policy("gpt2"), sampling, separator_token)
    with pretended_gpu() as gpu:
        policy = on_gpu("gpt2")
        gpu.reset()
        found = answer(policy, sampling, separator_token)
        assert gpu.num_waits == math.ceil(found.tokens.response_ids.shape[1] / 8) + (0 if separator_token else 6), (
            gpu.report()
        )
        same(found, expected)


def test_a_speaker_sends_and_reads_with_few_waits():
    replies = []
    with pretended_gpu() as gpu:
        for policy, most in ((new_policy("gpt2"), 0), (on_gpu("gpt2"), 2)):  # a look, the replies
            tokenizer = byte_tokenizer()
            stop = StopRule(policy, tokenizer, "<EOU>")
            speaker = Responder(policy, PromptEncoder(tokenizer, "<EOU>", 40), Sampling(8, greedy=True), stop)
            gpu.reset()
            replies.append(
                speaker.read(speaker.generate(speaker.encode([["Where is it ?"], ["Hi .", "Who is there ?"]])))
            )
            assert gpu.num_waits == most, gpu.report()
    assert replies[0] == replies[1]


def test_a_plan_that_the_host_makes_needs_no_wait():
    tokens = answer(new_policy("llama"), Sampling(8, top_k=5)).tokens
    expected = teacher_forced(new_policy("llama"), tokens, 1.0)
    with pretended_gpu() as gpu:
        policy = on_gpu("llama")
        names = ("prompt_ids", "response_ids", "support")
        there = replace(tokens, **{name: getattr(tokens, name).to("cuda") for name in names})
        gpu.reset()
        for (rows, columns), part in there.microbatches(2):
            assert rows.is_cuda
            assert part.pack().target_index.is_cuda
            predictions = teacher_forced(policy, part, 1.0)
            assert gpu.num_waits == 0, gpu.report()
            for name in ("logprobs", "entropy", "values"):
                theirs = getattr(expected, name)[rows.inner, columns]
                torch.testing.assert_close(getattr(predictions, name).inner, theirs, rtol=0, atol=1e-4)
