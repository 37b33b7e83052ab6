"""Where models are: what a run refuses before it loads any, and frozen models of rewards that come for each scoring."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rlhf_dialog.distributed.placement import Placement, check_placement
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import Scorer
from tests.parts.judges import DIALOGUES, Halved, Judge, inside, summed
from tests.parts.ranks import CONFIG
from tests.parts.zero_files import config


def test_fp16_weights_need_a_gpu():
    with pytest.raises(UserError, match="fp16 weights need a GPU"):
        check_placement(config(use_fp16=True), torch.device("cpu"))


class Carried(nn.Linear):
    """A model that notes where it is carried."""

    def __init__(self):
        super().__init__(1, 1)
        self.places = ["device"]

    def to(self, device):
        self.places.append("cpu" if str(device) == "cpu" else "device")
        return self

    def parameters(self):
        return iter([SimpleNamespace(device=torch.device("cpu" if self.places[-1] == "cpu" else "meta"))])


def test_a_frozen_model_waits_on_the_cpu_and_comes_for_each_scoring(monkeypatch):
    """World of a device that is no CPU; the settings are those of `intent_ds_config: eval_ds_config.json`."""
    judges = [Judge(), Judge()]
    during = []
    for judge in judges:
        judge.model = Carried()
        monkeypatch.setattr(judge, "__class__", type("Asked", (Judge,), {"__call__": lambda self, ds: noted(self, ds)}))

    def noted(judge, dialogues):
        during.append(judge.model.places[-1])
        return [1.0] * len(dialogues)

    reward = inside(2, summed(Halved(judges[0]), judges[1]))
    sharing = Placement.__new__(Placement)
    sharing.world, sharing.waiting, sharing.frozen = World(device=torch.device("meta")), [], []
    sharing.config = CONFIG.model_copy(update={"intent_ds_config": "default"})
    sharing._place_frozen(reward)
    assert [judge.model.places for judge in judges] == [["device", "cpu"]] * 2
    for round_ in (1, 2):
        Scorer(reward).score(DIALOGUES)
        assert during == ["device"] * 2 * round_
        assert [judge.model.places for judge in judges] == [["device", "cpu", *["device", "cpu"] * round_]] * 2
