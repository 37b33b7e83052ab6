"""Generation on the pretended GPU: the tokens of the CPU, no tensor on the wrong device, and one wait at each look."""

import math
from dataclasses import replace

import torch

from rlhf_dialog.models.generation import Responder, Sampling, StopRule
from rlhf_dialog.models.policy import Policy, teacher_forced
from rlhf_dialog.models.token_batch import TokenBatch, fetch, send, send_all
from tests.parts.pretended_gpu import CPU, CUDA, pretended_gpu
from tests.parts.tiny import byte_tokenizer, gpt2
from tests.parts.token_batches import columns_of

PAD, ENDS = 256, [257, *range(0, 250, 12)]


def new_policy():
    policy = Policy(gpt2(n_layer=3, initializer_range=0.3), with_value_head=True).eval()
    policy.lm.generation_config.eos_token_id = ENDS
    return policy


def on_gpu():
    policy = new_policy().to("cuda")
    assert policy.has_plain_head  # tried once, which waits
    return policy


def answer(policy, sampling):
    """Responses on the device of the policy, which end with a text, with the same random numbers each time."""
    stop = StopRule(policy, byte_tokenizer(separator_token=False), "<EOU>")
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(0, 250, (n,), generator=generator).tolist() for n in (5, 17, 9, 12, 3)]
    batch = TokenBatch.from_prompts(ids, PAD, policy.lm.device)
    torch.manual_seed(1)
    return Responder(policy, None, sampling, stop).generate(batch)


def test_a_response_waits_once_a_look_for_any_number_of_layers():
    sampling = Sampling(12, 0.7, top_k=9, top_p=0.8)
    expected = answer(new_policy(), sampling)
    with pretended_gpu() as gpu:
        policy = on_gpu()
        gpu.reset()
        found = answer(policy, sampling)
        waits, report = gpu.num_waits, gpu.report()
        for name, x in columns_of(expected).items():
            y = columns_of(found)[name].cpu()
            if x.is_floating_point():
                torch.testing.assert_close(x, y, rtol=0, atol=1e-4)
            else:
                assert torch.equal(x, y), name
    assert waits == math.ceil(found.tokens.response_ids.shape[1] / 8), report
    assert len(set(found.tokens.response_mask.sum(dim=1).tolist())) > 1


def test_a_plan_that_the_host_makes_needs_no_wait():
    tokens = answer(new_policy(), Sampling(8, top_k=5)).tokens
    expected = teacher_forced(new_policy(), tokens, 1.0)
    with pretended_gpu() as gpu:
        policy = on_gpu()
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


# -- copies between the devices


NUMBERS = [torch.arange(3), torch.empty(0, dtype=torch.long), torch.tensor([7])]


def test_sending_does_not_wait_and_fetching_waits_once_and_on_a_cpu_nothing_is_copied():
    x = torch.ones(2, 3)
    assert send(x, CPU) is fetch(x)[0] is x
    assert all(x is y for x, y in zip(send_all(NUMBERS, CPU), NUMBERS, strict=True))
    with pretended_gpu() as gpu:
        x = send(torch.ones(2, 3), CUDA)
        numbers = send_all(NUMBERS, CUDA)
        assert {y.device for y in (x, *numbers)} == {CUDA}
        assert gpu.num_waits == 0, gpu.report()
        found = fetch(x, *numbers, torch.zeros(1))
        assert gpu.num_waits == 1, gpu.report()
    assert [y.tolist() for y in found] == [[[1, 1, 1], [1, 1, 1]], [0, 1, 2], [], [7], [0]]
    assert {y.device for y in found} == {CPU}


def test_columns_of_a_wider_tensor_are_pinned_as_the_whole_that_they_become(monkeypatch):
    """Torch gives pinned memory the strides of its source, and copies what is not contiguous through other memory."""
    seen = []
    with pretended_gpu():
        pin = torch.Tensor.pin_memory
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: seen.append(x.is_contiguous()) or pin(x))
        assert fetch(send(torch.arange(6).view(2, 3)[:, :2], CUDA))[0].tolist() == [[0, 1], [3, 4]]
        monkeypatch.undo()
    assert seen == [True]
