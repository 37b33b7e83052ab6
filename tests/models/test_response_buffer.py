"""A sheet by hand: three rows, token 1 ends a response."""

import pytest
import torch

from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.generation import ResponseBuffer, ids_of

PAD, END = 9, 1
TOKENS = [[5, 6, 7, 8], [5, END, 3, 3], [END, 4, 4, 4]]
LOGPROBS = [[-0.5, -0.25, -0.125, -1.0], [-0.5, -2.0, -3.0, -4.0], [-0.5, -4.0, -5.0, -6.0]]


def ended(ids):
    return ids[:, -1] == END


def written(look_at, drop=False, tokens=TOKENS, logprobs=LOGPROBS, kept=None):
    """The columns of a sheet that was looked at after these numbers of tokens."""
    tokens, logprobs = torch.tensor(tokens), torch.tensor(logprobs)
    sheet = ResponseBuffer(tokens.shape, PAD, torch.device("cpu"))
    for t in range(tokens.shape[1]):
        sheet.put(t, {"ids": tokens[sheet.rows, t], "logprobs": logprobs[sheet.rows, t]})
        if kept is not None:
            sheet.kept.append(kept[sheet.host_rows, t])
        if t + 1 in look_at:
            alive = sheet.look(ended)
            if drop:
                sheet.keep_rows(alive)
    return {name: x.tolist() for name, x in sheet.columns().items()}


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("look_at", [(1, 2, 3, 4), (2, 4), (3, 4), (4,)])
def test_what_is_written_behind_an_end_does_not_count(look_at, drop):
    assert written(look_at, drop) == {
        "ids": [[5, 6, 7, 8], [5, END, PAD, PAD], [END, PAD, PAD, PAD]],
        "mask": [[True] * 4, [True, True, False, False], [True, False, False, False]],
        "logprobs": [[-0.5, -0.25, -0.125, -1.0], [-0.5, -2, 0, 0], [-0.5, 0, 0, 0]],
        "truncated": [True, False, False],
    }


def test_columns_are_as_long_as_the_longest_response():
    found = written((4,), tokens=TOKENS[1:], logprobs=LOGPROBS[1:])
    assert found["ids"] == [[5, END], [END, PAD]]
    assert (found["logprobs"], found["truncated"]) == ([[-0.5, -2], [-0.5, 0]], [False, False])


@pytest.mark.parametrize("look_at", [(1, 2, 3, 4), (2, 4), (4,)])
def test_supports_are_as_wide_as_a_token_that_counts_needs(look_at):
    """The last row keeps all four, but behind its end."""
    kept = torch.zeros(3, 4, 4, dtype=torch.bool)
    kept[:, :, 2] = kept[0, 1:, 0] = kept[2, 1:] = True
    assert written(look_at, kept=kept)["support"] == [
        [[2, -1], [0, 2], [0, 2], [0, 2]],
        [[2, -1], [2, -1], [-1, -1], [-1, -1]],
        [[2, -1], [-1, -1], [-1, -1], [-1, -1]],
    ]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("look_at", [(3,), (4,)])
def test_a_number_that_is_not_finite_is_seen_at_the_next_look(number, look_at):
    spoilt = [[*LOGPROBS[0][:2], number, -1.0], *LOGPROBS[1:]]
    with pytest.raises(RunStopped, match=r"predictions are not finite \(NaN or inf\)"):
        written(look_at, logprobs=spoilt)
    written((2,), logprobs=spoilt)


def test_the_ids_of_what_is_kept():
    kept = torch.tensor([[True, False, True, False], [False, False, False, True], [True, True, False, True]])
    assert ids_of(kept, 3).tolist() == [[0, 2, -1], [3, -1, -1], [0, 1, 3]]
    assert ids_of(kept, 1).tolist() == [[0], [3], [0]]  # rows that have ended may keep more than those that count
