"""R@k: does a judge of relevance find a reply's own prompt among 100? B replies, C prompts to choose from."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.intervals import Array
from rlhf_dialog.models.relevance import RelevanceModel

NUM_CONTEXTS = 100
KS = (1, 10)


def recalls(
    model: RelevanceModel, dialogues: Sequence[Dialogue], groups: Sequence[int], seed: int = 0
) -> dict[str, Array]:
    """`r1` and `r10`, (B,) each: 1 where the reply's own prompt is among the k best of 100, else 0.

    The 99 others are drawn by `seed` from the prompts of other dialogues (`groups`: the dialogue of each), all of them where
    there are fewer; NaN where there are none. A prompt that scores like the own one ranks above it.
    """
    scores = candidate_scores(model, dialogues, draw_candidates(dialogues, groups, seed))
    ranks = (scores[:, 1:] >= scores[:, :1]).sum(dim=1).numpy()
    alone = scores.shape[1] == 1
    return {f"r{k}": np.full(len(ranks), np.nan) if alone else (ranks < k).astype(np.float64) for k in KS}


def draw_candidates(dialogues: Sequence[Dialogue], groups: Sequence[int], seed: int) -> Tensor:
    """(B, C): the row of the own prompt, then those of the others."""
    numbers = np.asarray(groups)
    generator = np.random.default_rng(seed)
    most = min([NUM_CONTEXTS - 1, *(int((numbers != group).sum()) for group in set(groups))])
    rows = []
    for row, group in enumerate(numbers):
        others = np.flatnonzero(numbers != group)
        rows.append([row, *generator.choice(others, most, replace=False)])
    return torch.tensor(np.asarray(rows, dtype=np.int64)).reshape(len(rows), most + 1)


def candidate_scores(model: RelevanceModel, dialogues: Sequence[Dialogue], candidates: Tensor) -> Tensor:
    """The mean score of the members, (B, C)."""
    contexts = [dialogue.turns_before for dialogue in dialogues]
    return model.scores(contexts, [dialogue.response for dialogue in dialogues], candidates).mean(dim=0)
