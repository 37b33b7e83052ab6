"""Recall of a reply's own prompt, by hand."""

import numpy as np
import pytest
import torch
from relevance_models import LETTERS, letter_model

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.relevance import draw_candidates, recalls


class Counting:
    """Scores a pair by how many letters of the reply its last turn has; two members, of which the second agrees."""

    def scores(self, contexts, replies, candidates):
        found = [
            [len(set(contexts[c][-1]) & set(r)) for c in row]
            for r, row in zip(replies, candidates.tolist(), strict=True)
        ]
        return torch.tensor([found, found], dtype=torch.float32)


def test_candidates_are_the_own_prompt_and_those_of_other_dialogues():
    groups = [i // 3 for i in range(330)]
    rows = draw_candidates([], groups, seed=1)
    assert rows.shape == (330, 100)
    for row, candidates in enumerate(rows.tolist()):
        assert candidates[0] == row
        assert len(set(candidates)) == 100
        assert all(groups[other] != groups[row] for other in candidates[1:])
    assert torch.equal(rows, draw_candidates([], groups, seed=1))
    assert not torch.equal(rows, draw_candidates([], groups, seed=2))


def test_recall_by_hand():
    """Twelve prompts of one letter each: the first reply has its own letter, the second another one, the third none."""
    dialogues = [Dialogue([letter], response=letter) for letter in LETTERS[:12]]
    dialogues[1].response, dialogues[2].response = "a", "t"
    found = recalls(Counting(), dialogues, range(12))
    assert found["r1"].tolist() == [1, 0, 0] + [1] * 9
    assert found["r10"].tolist() == [1, 0, 0] + [1] * 9  # all others score like the own prompt: they rank above it


def test_without_another_dialogue_there_is_no_recall():
    found = recalls(letter_model(), [Dialogue(["a"], "b"), Dialogue(["a", "b"], "c")], [0, 0])
    assert all(np.isnan(values).all() and len(values) == 2 for values in found.values())


@pytest.mark.parametrize("architecture", ["bag", "cross_encoder"])
def test_a_model_ranks_by_the_mean_of_its_members(architecture):
    model = letter_model(architecture)
    dialogues = [
        Dialogue([f"{a} {b}"], response=f"{b} {c}") for a, b, c in zip(LETTERS, LETTERS[5:], LETTERS[9:], strict=False)
    ]
    count = len(dialogues)
    scores = model.scores(
        [d.prompt_turns for d in dialogues], [d.response for d in dialogues], torch.arange(count).expand(count, -1)
    )
    mean = scores.mean(dim=0)
    ranks = [sum(mean[i, j].item() >= mean[i, i].item() - 1e-6 for j in range(count) if j != i) for i in range(count)]
    found = recalls(model, dialogues, range(count))
    assert found["r1"].tolist() == [rank < 1 for rank in ranks]
    assert found["r10"].tolist() == [rank < 10 for rank in ranks]
