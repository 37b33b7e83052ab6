"""The default vec-info: its numbers by hand."""

from types import SimpleNamespace

import pytest
import torch

from rlhf_dialog import NLPVecInfo
from rlhf_dialog.data.dialogue import Dialogue


def test_nlp_vec_info_by_hand():
    rollout = SimpleNamespace(
        dialogues=[Dialogue([], response="yes I do"), Dialogue([], response=""), Dialogue([], response="yes I go now")],
        rewards=torch.tensor([[1.0, -0.5, 0.0], [0.25, 0.25, 1.0], [0.0, 0.0, -3.0]]),
    )
    found = NLPVecInfo()(rollout)
    assert found == {
        "response/words": pytest.approx(7 / 3),
        "response/distinct_2": pytest.approx(4 / 5),  # yes I, I do, yes I, I go, go now
        "objective/episode_reward": pytest.approx((0.5 + 1.5 - 3.0) / 3),
    }
    assert all(type(value) is float for value in found.values())
