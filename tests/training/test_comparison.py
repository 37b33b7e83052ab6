"""Both sides of a comparison, made again: on a healthy model they are what the rollout has stored."""

from dataclasses import replace

import pytest
import torch
from faulty import trainer_on
from transformers import GPT2LMHeadModel

from rlhf_dialog.training.comparison import COLUMNS, ROWS, Comparison, batch_of
from rlhf_dialog.training.noise import Noise


def sides_of(trainer):
    rollout = trainer.rollout = trainer.collector.collect(trainer.next_prompts(), 1)
    batch = batch_of(rollout, torch.arange(len(rollout)), 256)
    speaker, reference = trainer.speaker, trainer.models.ref_policy
    return Comparison(speaker.policy, reference, batch, speaker.sampling, speaker.stop, 1.0, Noise())


@pytest.mark.parametrize("keys", [{}, {"top_k": 9, "temperature": 0.8}, {"advantage_estimator": "grpo"}])
@pytest.mark.parametrize("packing", [True, False])
def test_a_healthy_model_writes_and_reads_what_the_rollout_stored(keys, packing):
    keys |= {"num_responses_per_prompt": 3} if "advantage_estimator" in keys else {}
    trainer = trainer_on(GPT2LMHeadModel, packing, **keys)
    sides = replace(sides_of(trainer), temperature=trainer.config.temperature)
    stored = trainer.rollout.logprobs[trainer.rollout.response_mask]
    assert len(sides.recorded) == len(stored)
    for found in (sides.recorded, sides.logprobs(sides.written()), sides.logprobs(sides.read())):
        torch.testing.assert_close(found, stored, rtol=0, atol=1e-5)
    torch.testing.assert_close(sides.sampled(sides.written()), stored, rtol=0, atol=1e-5)
    assert not sides.is_back
    assert sides.is_equal


def test_a_row_alone_has_no_padding():
    sides = sides_of(trainer_on(GPT2LMHeadModel))
    assert not sides.batch.prompt_mask.all()
    for i in range(len(sides.batch.mask)):
        row = sides.batch.row(i)
        assert row.prompt_mask.all()
        assert row.prompt_ids.shape[1] == sides.batch.prompt_mask[i].sum()
        assert row.mask[0, -1]


def test_only_some_rows_and_tokens_are_computed_again():
    """As many rows as ROWS, the first of those given; and no token behind the last position."""
    trainer = trainer_on(GPT2LMHeadModel, rollout_batch_size=12, max_new_tokens=80)
    trainer.speaker.stop.end_ids = [-1]
    trainer.step()
    rollout, rows = trainer.rollout, torch.arange(11, -1, -1)
    batch = batch_of(rollout, rows, 256)
    assert batch.mask.shape == (ROWS, COLUMNS)
    assert torch.equal(batch.response_ids, rollout.response_ids[rows[:ROWS], :COLUMNS])
    longest = int(rollout.prompt_mask[rows[:ROWS]].sum(dim=1).max())
    assert batch_of(rollout, rows, longest + 7).mask.shape == (ROWS, 7)
    assert not len(batch_of(rollout, rows[:0], 256).mask)


def test_tokens_are_replaced_and_padding_is_kept_apart():
    batch = sides_of(trainer_on(GPT2LMHeadModel)).batch
    token = int(batch.packed.ids[0])
    assert token not in batch.with_ids(token, 1).packed.ids
    padded = batch.padded_with(3)
    assert (padded.prompt_ids[~batch.prompt_mask] == 3).all()
    assert torch.equal(padded.packed.ids, batch.packed.ids)


def test_equal_is_within_four_times_the_noise():
    sides = replace(sides_of(trainer_on(GPT2LMHeadModel)), noise=Noise(mean=0.01, largest=0.1))
    zeros = torch.zeros(100)
    for size, is_equal in ((0.039, True), (0.045, False), (float("nan"), False)):
        assert sides.equal(zeros, zeros + size) is is_equal
    one = zeros.clone()
    one[3] = 0.41
    assert not sides.equal(zeros, one)
    assert sides.equal(zeros[:0], zeros[:0])
