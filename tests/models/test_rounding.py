"""The yardstick of the tries of a model: rows of text, what is predicted of them alone, and what passes for rounding."""

import math

import pytest
import torch
from tiny import byte_tokenizer, gpt2, llama

from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.rounding import (
    LEAST,
    MOST,
    Alone,
    in_batch,
    largest,
    left_padded_logprobs,
    limit_of,
    logprobs,
    probe_ids,
)


@pytest.mark.parametrize("positions", [8, 33, 96, 10**9])
@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_rows_are_of_different_lengths_and_fit_the_model(positions, has_tokenizer):
    rows = probe_ids(byte_tokenizer() if has_tokenizer else None, 259, positions)
    assert len(rows) >= 8
    assert sum(len(row) - 1 for row in rows) >= 500
    lengths = {len(row) for row in rows}
    assert max(lengths) == min(96, positions)
    assert len(lengths) > 1
    assert all(row.min() >= 0 and row.max() < 259 for row in rows)
    assert all(map(torch.equal, rows, probe_ids(byte_tokenizer() if has_tokenizer else None, 259, positions)))


def test_a_short_vocabulary_is_not_left():
    assert all(row.max() < 5 for row in probe_ids(byte_tokenizer(), 5, 40))


@pytest.mark.parametrize("new_lm", [gpt2, llama])
def test_predictions_are_those_of_a_plain_loop(new_lm):
    lm = new_lm().eval()
    rows = probe_ids(byte_tokenizer(), 259, 30)
    alone = Alone(lm, rows)
    for ids, found in zip(rows, alone.logprobs, strict=True):
        with torch.no_grad():
            logits = lm(input_ids=ids.unsqueeze(0)).logits[0].double().log_softmax(-1)
        expected = torch.stack([logits[place, ids[place + 1]] for place in range(len(ids) - 1)])
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    assert 0 <= alone.together < 1e-5 > alone.shorter >= 0
    assert alone.difference(torch.cat(alone.logprobs)) == 0
    lm.set_attn_implementation("sdpa")
    assert alone.difference(left_padded_logprobs(Policy(lm), rows)) < 1e-5
    assert alone.difference(logprobs(Policy(lm), rows)) < 1e-5


def test_a_batch_is_padded_on_either_side():
    rows = [torch.tensor([1, 2, 3]), torch.tensor([4])]
    for side, ids, mask in (("right", [4, 0, 0], [1, 0, 0]), ("left", [0, 0, 4], [0, 0, 1])):
        found = in_batch(rows, side)
        assert found[0].tolist() == [[1, 2, 3], ids]
        assert found[1].int().tolist() == [[1, 1, 1], mask]


def test_limits_are_twenty_times_the_noise_within_two_bounds():
    assert limit_of(0.0) == 20 * LEAST == pytest.approx(2e-5)
    assert limit_of(1e-5, 3e-5) == pytest.approx(6e-4)
    assert limit_of(1e-5, 0.1) == MOST == 1e-2
    assert limit_of(math.inf) == MOST


def test_what_is_no_number_or_of_another_shape_differs_by_infinity():
    assert largest(torch.tensor([1.0, 2.0]), torch.tensor([1.5, 2.0])) == 0.5
    assert largest(torch.tensor([math.nan]), torch.tensor([1.0])) == math.inf
    assert largest(torch.ones(2), torch.ones(3)) == math.inf
