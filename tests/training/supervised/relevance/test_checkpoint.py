"""The checkpoint of a relevance model's members, as it lies on disk."""

import torch

from rlhf_dialog.training.supervised.checkpoints import SaveTimer
from rlhf_dialog.training.supervised.relevance.checkpoint import MembersCheckpoint, RelevanceProgress
from tests.parts.relevance_models import letter_model


def test_what_was_saved_comes_back_and_only_to_the_same_training(tmp_path):
    saved = letter_model(seed=1)
    progress = RelevanceProgress(member=1, step=7, order=torch.tensor([4, 2]), random=torch.get_rng_state())
    MembersCheckpoint(saved, tmp_path, "a", SaveTimer(5)).save(progress)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-members.pt"]
    fresh = letter_model(seed=2)
    assert MembersCheckpoint(fresh, tmp_path, "b", SaveTimer(5)).restore().step == 0
    assert not all(x.equal(y) for x, y in zip(saved.parameters(), fresh.parameters(), strict=True))
    found = MembersCheckpoint(fresh, tmp_path, "a", SaveTimer(5)).restore()
    assert (found.member, found.step, found.order.tolist()) == (1, 7, [4, 2])
    assert all(x.equal(y) for x, y in zip(saved.parameters(), fresh.parameters(), strict=True))
