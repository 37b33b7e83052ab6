"""Which tokens of a batch are computed, where they lie, and what is computed once."""

import pytest
import torch
from plain import new_case, sharing

from rlhf_dialog.models import packed_rows
from rlhf_dialog.models.packed_rows import pack, pack_prompts


def masks_of(*rows):
    return torch.tensor([[letter == "1" for letter in row] for row in rows])


def listed(packed):
    found = {name: x.tolist() if isinstance(x, torch.Tensor) else x for name, x in vars(packed).items()}
    del found["groups"]
    return found


def test_pack_by_hand():
    """The last response token is fed to nobody; a token that does not count is fed all the same."""
    prompts, responses = torch.tensor([[90, 11, 12], [21, 91, 22]]), torch.tensor([[31, 32, 92], [41, 42, 43]])
    packed = pack(prompts, masks_of("011", "101"), responses, masks_of("110", "101"))
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
        "at": [0, 1, 3, 5],
        "shape": (2, 3),
    }
    assert packed.gather(responses).tolist() == [31, 32, 41, 43]
    assert packed.scatter(torch.tensor([[1.0], [2.0], [3.0], [4.0]]))[:, :, 0].tolist() == [[1, 2, 0], [3, 0, 4]]


def test_pack_prompts_by_hand():
    packed = pack_prompts(torch.tensor([[90, 11, 12], [21, 91, 22], [93, 94, 51]]), masks_of("011", "101", "001"))
    assert listed(packed) == {
        "ids": [11, 12, 21, 22, 51],
        "positions": [0, 1, 0, 1, 0],
        "place": [0, 1, 2, 3, 4],
        "source": [0, 1, 2, 3, 4],
        "num_rows": 3,
        "width": 2,
        "keep": [1, 3, 4],
        "kept_place": [1, 3, 4],
        "targets": [],
        "at": [],
        "shape": (3, 0),
    }


def test_a_response_of_which_nothing_counts():
    prompts, responses = torch.tensor([[11, 12], [21, 22]]), torch.tensor([[31, 32], [41, 42]])
    packed = pack(prompts, masks_of("11", "01"), responses, masks_of("00", "10"))
    assert (packed.ids.tolist(), packed.keep.tolist(), packed.targets.tolist()) == ([11, 12, 22], [2], [41])


@pytest.mark.parametrize("seed", range(30))
def test_pack_equals_a_loop(seed):
    case = new_case(seed, rows=1 + seed % 5, holes=seed % 3 > 0)
    packed = pack(*case.inputs)
    ids, positions, keep, targets, rows = [], [], [], [], []
    for b in range(len(case.prompt_ids)):
        row = case.prompt_ids[b][case.prompt_mask[b]].tolist()
        counted = case.response_mask[b].nonzero().flatten().tolist()
        for t in range(max(counted, default=-1) + 1):
            if t in counted:
                keep.append(len(ids) + len(row) - 1)
                targets.append(case.response_ids[b, t].item())
            row.append(case.response_ids[b, t].item())
        row = row[:-1] if counted else row
        ids += row
        positions += range(len(row))
        rows.append(len(row))
    expected = (ids, positions, keep, targets)
    assert tuple(x.tolist() for x in (packed.ids, packed.positions, packed.keep, packed.targets)) == expected
    assert (packed.num_rows, packed.width) == (len(rows), max(rows))
    assert packed.place.tolist() == [b * max(rows) + i for b, n in enumerate(rows) for i in range(n)]


@pytest.mark.parametrize("together", [1, 2, 4])
def test_groups_by_hand(together, monkeypatch):
    """Rows of 2, 1, 3, 1, 2 tokens: the groups are neighbours, and each is as wide as its own longest row."""
    monkeypatch.setattr(packed_rows, "ROWS_TOGETHER", together)
    mask = torch.arange(3) < torch.tensor([2, 1, 3, 1, 2]).unsqueeze(1)
    packed = pack_prompts(torch.zeros_like(mask, dtype=torch.long), mask)
    found = [(g.first, g.count, g.width, (g.tokens.start, g.tokens.stop), g.place.tolist()) for g in packed.groups]
    assert (
        found
        == {
            1: [
                (0, 1, 2, (0, 2), [0, 1]),
                (1, 1, 1, (2, 3), [0]),
                (2, 1, 3, (3, 6), [0, 1, 2]),
                (3, 1, 1, (6, 7), [0]),
                (4, 1, 2, (7, 9), [0, 1]),
            ],
            2: [
                (0, 2, 2, (0, 3), [0, 1, 2]),
                (2, 2, 3, (3, 7), [0, 1, 2, 3]),
                (4, 1, 2, (7, 9), [0, 1]),
            ],
            4: [(0, 4, 3, (0, 7), [0, 1, 3, 6, 7, 8, 9]), (4, 1, 2, (7, 9), [0, 1])],
        }[together]
    )


# -- prompts that several responses share


def test_a_shared_prompt_by_hand():
    """The prompt 11 12 of rows 0 and 2, and 21 of row 1; the responses 31 32, 41 42 43 and 51."""
    prompts = torch.tensor([[11, 12], [99, 21], [11, 12]])
    responses = torch.tensor([[31, 32, 90], [41, 42, 43], [51, 90, 90]])
    masks = masks_of("11", "01", "11"), masks_of("110", "111", "100")
    packed = pack(prompts, masks[0], responses, masks[1], torch.tensor([4, 1, 4]))
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
        "at": [0, 1, 3, 4, 5, 6],
        "shape": (3, 3),
    }
    whole, ends = packed.groups
    assert (whole.tokens, whole.place.tolist(), whole.seen) == (slice(0, 3), [0, 1, 2], None)
    assert (ends.tokens, ends.place.tolist(), ends.before.tolist()) == (slice(3, 6), [0, 2, 3], [2, 1])
    assert ends.seen.tolist() == [0, 1, 3, 2, 4, 5]  # row 2 feeds no token of its response
    assert ends.mask(None).int().tolist() == [[[[1, 1, 1], [1, 1, 1]]], [[[1, 1, 0], [1, 1, 1]]]]
    assert ends.mask(2).int().tolist() == [[[[0, 1, 1], [0, 0, 1]]], [[[1, 1, 0], [0, 1, 1]]]]
    assert packed.padded(packed.ids).tolist() == [[11, 12, 31], [21, 41, 42], [11, 12, 0]]


def test_numbers_that_differ_change_nothing():
    case = new_case(3, rows=5)
    plain, numbered = pack(*case.inputs), pack(*case.inputs, torch.tensor([4, 0, 7, 1, 2]))
    assert listed(plain) == listed(numbered)
    assert all(rows.seen is None for rows in numbered.groups)


@pytest.mark.parametrize("seed", range(30))
def test_shared_rows_equal_a_loop(seed):
    """Padded again, the tokens, targets and places are those of rows that share nothing, and no prompt is there twice."""
    case, numbers = sharing(new_case(seed, rows=2 + seed % 7, holes=seed % 3 > 0), seed)
    plain, shared = pack(*case.inputs), pack(*case.inputs, numbers)
    same = ("place", "num_rows", "width", "kept_place", "targets", "at", "shape")
    assert all(listed(plain)[name] == listed(shared)[name] for name in same)
    for name in ("ids", "positions"):
        assert torch.equal(plain.padded(getattr(plain, name)), shared.padded(getattr(shared, name)))
    assert torch.equal(shared.ids[shared.keep], plain.ids[plain.keep])
    once = sum(int(case.prompt_mask[numbers.tolist().index(number)].sum()) for number in set(numbers.tolist()))
    assert len(shared.ids) == len(plain.ids) - int(case.prompt_mask.sum()) + once
    assert sum(rows.tokens.stop - rows.tokens.start for rows in shared.groups) == len(shared.ids)
