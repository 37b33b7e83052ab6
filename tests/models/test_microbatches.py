"""Which episodes one forward pass sees."""

import pytest
import torch

from rlhf_dialog.models.microbatches import microbatches


def masks_of(*rows):
    return torch.tensor([[letter == "1" for letter in row] for row in rows])


def test_microbatches_by_hand():
    """Sorted by the length of prompt and response, each cut to the columns that some row of it fills."""
    prompts = masks_of("0001", "1111", "0011", "0111", "0001")
    responses = masks_of("111", "110", "100", "101", "110")  # lengths 4, 6, 3, 6, 3; the fourth has a hole
    cut = [
        (part.rows.tolist(), part.prompt, part.response)
        for part in microbatches(prompts, responses, torch.arange(5), 2)
    ]
    assert cut == [
        ([2, 4], slice(2, None), slice(0, 2)),
        ([0, 1], slice(0, None), slice(0, 3)),
        ([3], slice(1, None), slice(0, 3)),
    ]
    cut = [
        (part.rows.tolist(), part.prompt, part.response)
        for part in microbatches(prompts, responses, torch.tensor([4, 2]), 9)
    ]
    assert cut == [([4, 2], slice(2, None), slice(0, 2))]


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (1, [[1], [4], [6], [0], [2], [3], [5]]),
        (2, [[1, 4], [6], [0, 2], [3, 5]]),
        (3, [[1, 4, 6], [0, 2, 3], [5]]),
        (4, [[1, 4, 6], [0, 2, 3, 5]]),
        (7, [[1, 4, 6, 0, 2, 3, 5]]),
    ],
)
def test_a_group_is_cut_only_where_it_does_not_fit(size, parts):
    """Rows 0, 2 and 3 have the same prompt, 1, 4 and 6 have another, which is shorter; 5 has its own, the longest."""
    prompts = masks_of("0111", "0001", "0111", "0111", "0001", "1111", "0001")
    responses = masks_of("100", "100", "110", "111", "110", "111", "111")
    numbers = torch.tensor([5, 2, 5, 5, 2, 9, 2])
    found = microbatches(prompts, responses, torch.arange(7), size, prompt_numbers=numbers)
    assert [part.host_rows.tolist() for part in found] == parts


def test_numbers_that_differ_change_no_microbatch():
    torch.manual_seed(0)
    prompts, responses = torch.rand(9, 5) > 0.3, torch.rand(9, 4) > 0.3
    plain = microbatches(prompts, responses, torch.arange(9), 4)
    numbered = microbatches(prompts, responses, torch.arange(9), 4, prompt_numbers=torch.arange(9))
    assert [part.rows.tolist() for part in plain] == [part.rows.tolist() for part in numbered]
