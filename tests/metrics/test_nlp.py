"""The default vec-info by hand, and a user's."""

from types import SimpleNamespace

import pytest
import torch

from rlhf_dialog import NLPVecInfo, VecInfo, VecInfoFactory
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


def test_a_vec_info_of_ones_own_registers_like_the_built_in(monkeypatch):
    monkeypatch.setattr(VecInfoFactory, "classes", dict(VecInfoFactory.classes))

    @VecInfoFactory.register("Mine")
    class Mine(VecInfo):
        def __init__(self, scale: float = 2.0):
            self.scale = scale

        def __call__(self, rollout):
            return {"my/number": self.scale}

    assert VecInfoFactory.create("Mine", {"scale": 3.0})(None) == {"my/number": 3.0}
    assert type(VecInfoFactory.create("NLPVecInfo", {})) is NLPVecInfo
    assert VecInfo()(None) == {}
