"""Which tokens of a batch are computed, where they lie, and what is computed once."""

import pytest
import torch

from rlhf_dialog.models import token_batch
from rlhf_dialog.models.token_batch import TokenBatch
from tests.parts.token_batches import masks_of, prompts_of


def listed(packed):
    found = {name: x.tolist() if isinstance(x, torch.Tensor) else x for name, x in vars(packed).items()}
    del found["groups"], found["support"]
    return found


def test_pack_by_hand():
    """The last response token is fed to nobody; a token that does not count is fed all the same."""
    prompts, responses = torch.tensor([[90, 11, 12], [21, 91, 22]]), torch.tensor([[31, 32, 92], [41, 42, 43]])
    packed = TokenBatch(prompts, masks_of("011", "101"), responses, masks_of("110", "101")).pack()
    assert listed(packed) == {
        "ids": [11, 12, 31, 21, 22, 41, 42],
        "positions": [0, 1, 2, 0, 1, 2, 3],
        "place": [0, 1, 2, 4, 5, 6, 7],
        "source": [0, 1, 2, 3, 4, 5, 6],
        "num_rows": 2,
        "width": 4,
        "keep": [1, 2, 4, 6],
        "kept_place": [1, 2, 5, 7],
        "targets": [31, 32, 41, 43],
        "target_index": [0, 1, 3, 5],
        "shape": (2, 3),
    }
    assert packed.gather(responses).tolist() == [31, 32, 41, 43]
    assert packed.scatter(torch.tensor([[1.0], [2.0], [3.0], [4.0]]))[:, :, 0].tolist() == [[1, 2, 0], [3, 0, 4]]


@pytest.mark.parametrize("together", [2, 4])
def test_groups_by_hand(together, monkeypatch):
    """Rows of 2, 1, 3, 1, 2 tokens: the groups are neighbours, and each is as wide as its own longest row."""
    monkeypatch.setattr(token_batch, "ROWS_TOGETHER", together)
    mask = torch.arange(3) < torch.tensor([2, 1, 3, 1, 2]).unsqueeze(1)
    packed = prompts_of(torch.zeros_like(mask, dtype=torch.long), mask).pack_prompts()
    found = [(g.first, g.count, g.width, (g.tokens.start, g.tokens.stop), g.place.tolist()) for g in packed.groups]
    expected = {
        2: [(0, 2, 2, (0, 3), [0, 1, 2]), (2, 2, 3, (3, 7), [0, 1, 2, 3]), (4, 1, 2, (7, 9), [0, 1])],
        4: [(0, 4, 3, (0, 7), [0, 1, 3, 6, 7, 8, 9]), (4, 1, 2, (7, 9), [0, 1])],
    }
    assert found == expected[together]


# -- prompts that several responses share


def test_a_shared_prompt_by_hand():
    """The prompt 11 12 of rows 0 and 2, and 21 of row 1; the responses 31 32, 41 42 43 and 51."""
    prompts = torch.tensor([[11, 12], [99, 21], [11, 12]])
    responses = torch.tensor([[31, 32, 90], [41, 42, 43], [51, 90, 90]])
    masks = masks_of("11", "01", "11"), masks_of("110", "111", "100")
    packed = TokenBatch(prompts, masks[0], responses, masks[1], torch.tensor([4, 1, 4])).pack()
    assert listed(packed) == {
        "ids": [11, 12, 21, 31, 41, 42],
        "positions": [0, 1, 0, 2, 1, 2],
        "place": [0, 1, 2, 3, 4, 5, 6, 7],
        "source": [0, 1, 3, 2, 4, 5, 0, 1],
        "num_rows": 3,
        "width": 3,
        "keep": [1, 3, 2, 4, 5, 1],
        "kept_place": [1, 2, 3, 4, 5, 7],
        "targets": [31, 32, 41, 42, 43, 51],
        "target_index": [0, 1, 3, 4, 5, 6],
        "shape": (3, 3),
    }
    whole, ends = packed.groups
    assert (whole.tokens, whole.place.tolist(), whole.seen) == (slice(0, 3), [0, 1, 2], None)
    assert (ends.tokens, ends.place.tolist(), ends.before.tolist()) == (slice(3, 6), [0, 2, 3], [2, 1])
    assert ends.seen.tolist() == [0, 1, 3, 2, 4, 5]  # row 2 feeds no token of its response
    assert ends.bias(None, torch.float32).exp().int().tolist() == [[[[1, 1, 1], [1, 1, 1]]], [[[1, 1, 0], [1, 1, 1]]]]
    assert ends.bias(2, torch.float32).exp().int().tolist() == [[[[0, 1, 1], [0, 0, 1]]], [[[1, 1, 0], [0, 1, 1]]]]
    assert packed.pad(packed.ids).tolist() == [[11, 12, 31], [21, 41, 42], [11, 12, 0]]


def cut_of(microbatches):
    """The rows of each microbatch, and its numbers of prompt and response columns."""
    return [(at[0].tolist(), part.prompt_mask.shape[1], part.response_mask.shape[1]) for at, part in microbatches]


def batch_of(prompt_mask, response_mask, groups=None):
    ids, response_ids = (torch.arange(mask.numel()).view(mask.shape) for mask in (prompt_mask, response_mask))
    return TokenBatch(ids, prompt_mask, response_ids, response_mask, groups)


def test_microbatches_by_hand():
    """Sorted by the length of prompt and response, each cut to the columns that some row of it fills."""
    prompts = masks_of("0001", "1111", "0011", "0111", "0001")
    responses = masks_of("111", "110", "100", "101", "110")  # lengths 4, 6, 3, 6, 3; the fourth has a hole
    batch = batch_of(prompts, responses)
    assert cut_of(batch.microbatches(2)) == [([2, 4], 2, 2), ([0, 1], 4, 3), ([3], 3, 3)]
    (((rows, columns), part),) = batch.microbatches(9, torch.tensor([4, 2]))
    assert (rows.tolist(), columns) == ([4, 2], slice(0, 2))
    assert part.prompt_ids.tolist() == [[18, 19], [10, 11]]
    assert part.response_ids.tolist() == [[12, 13], [6, 7]]
    assert part.prompt_mask.int().tolist() == [[0, 1], [1, 1]]
    assert part.response_mask.int().tolist() == [[1, 1], [1, 0]]
    assert batch.microbatches(3, torch.empty(0, dtype=torch.long)) == []


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (2, [[1, 4], [6], [0, 2], [3, 5]]),
        (3, [[1, 4, 6], [0, 2, 3], [5]]),
        (7, [[1, 4, 6, 0, 2, 3, 5]]),
    ],
)
def test_a_group_is_cut_only_where_it_does_not_fit(size, parts):
    """Rows 0, 2 and 3 have the same prompt, 1, 4 and 6 have another, which is shorter; 5 has its own, the longest."""
    prompts = masks_of("0111", "0001", "0111", "0111", "0001", "1111", "0001")
    responses = masks_of("100", "100", "110", "111", "110", "111", "111")
    batch = batch_of(prompts, responses, torch.tensor([5, 2, 5, 5, 2, 9, 2]))
    assert [at[0].tolist() for at, _ in batch.microbatches(size)] == parts


def test_prompts_are_padded_on_the_left_and_replies_on_the_right():
    prompts = TokenBatch.from_prompts([[5, 6, 7], [8], [9, 0]], 1, torch.device("cpu"))
    assert prompts.prompt_ids.tolist() == [[5, 6, 7], [1, 1, 8], [1, 9, 0]]
    assert prompts.prompt_mask.tolist() == [[True, True, True], [False, False, True], [False, True, True]]
    assert prompts.response_ids.shape == prompts.response_mask.shape == (3, 0)
    batch = prompts.with_replies([[2], [3, 4], [5, 6]])
    assert batch.response_ids.tolist() == [[2, 1], [3, 4], [5, 6]]
    assert batch.response_mask.int().tolist() == [[1, 0], [1, 1], [1, 1]]
    last = batch.rows(torch.tensor([2, 1])).rows(slice(0, 1)).without_padding()
    assert (last.prompt_ids.tolist(), last.response_ids.tolist()) == ([[9, 0]], [[5, 6]])
