"""Dialogues that are longer than the context: which tokens were sampled behind which prompt."""

import torch

from rlhf_dialog.training.episodes import Segments, Span
from tests.parts.token_batches import prompts_of

IDS = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 0, 0, 0, 0]])


def three():
    """Dialogue 0 in two parts with a token between them, dialogue 1 in one."""
    prompts, mask = torch.tensor([[9, 8], [0, 7], [6, 5]]), torch.tensor([[True, True], [False, True], [True, True]])
    return Segments(prompts_of(prompts, mask), [Span(0, 0, 3), Span(0, 4, 6), Span(1, 0, 2)], (2, 6))


def test_each_segment_has_its_columns():
    assert three().split(IDS).tolist() == [[1, 2, 3], [5, 6, 0], [7, 8, 0]]
    assert three().split(IDS.unsqueeze(2), -1).tolist() == [[[1], [2], [3]], [[5], [6], [-1]], [[7], [8], [-1]]]


def test_joined_is_the_way_back():
    expected = [[1, 2, 3, 0, 5, 6], [7, 8, 0, 0, 0, 0]]  # the token between two segments is in neither
    assert three().join(three().split(IDS)).tolist() == expected


def test_some_dialogues_alone():
    both, second = three().select([1, 0]), three().select([1])
    assert [(span.row, span.start, span.end) for span in both.spans] == [(1, 0, 3), (1, 4, 6), (0, 0, 2)]
    assert both.split(IDS.flip(0)).tolist() == three().split(IDS).tolist()
    assert (second.rows, second.prompts.prompt_ids.tolist(), second.split(IDS[1:]).tolist()) == (
        [0],
        [[6, 5]],
        [[7, 8]],
    )
