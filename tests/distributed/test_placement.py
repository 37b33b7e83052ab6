"""Where models are: what a run refuses before it loads any, and frozen models of rewards that come for each scoring."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rlhf_dialog.distributed import placement
from rlhf_dialog.distributed.deepspeed_config import EngineSettings, FrozenSettings
from rlhf_dialog.distributed.placement import Placement, check_placement
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.models import precision
from rlhf_dialog.rewards import score_dialogues
from tests.parts.judges import DEPTHS, DIALOGUES, Halved, Judge, inside, summed
from tests.parts.ranks import CONFIG
from tests.parts.zero_files import config


def test_fp16_weights_need_a_gpu():
    with pytest.raises(UserError, match="fp16 weights need a GPU"):
        check_placement(config(use_fp16=True), torch.device("cpu"))


@pytest.mark.parametrize(
    ("keys", "stage", "has_bf16", "words"),
    [
        ({}, None, True, None),
        ({"precision": "fp16"}, None, False, None),
        ({}, 2, True, None),
        ({}, None, False, "because it has no bf16; for several times the speed, set precision: fp16"),
        ({"precision": "fp32"}, None, True, "because precision: fp32 asks for it; .* leave that key out"),
        ({"use_amp": False}, 3, True, "because use_amp: false asks for it"),
        ({}, 3, True, r"zero.json has no bf16 block; .* add .bf16.: ..enabled.: true. to it"),
        ({"precision": "bf16"}, 3, True, None),
    ],
)
def test_a_gpu_that_computes_in_float32_is_reported(keys, stage, has_bf16, words, monkeypatch, caplog):
    for module in (placement, precision):
        monkeypatch.setattr(module, "gpu_has_bf16", lambda: has_bf16)
    place = Placement.__new__(Placement)
    place.config, place.settings, place.world = CONFIG.model_copy(update=keys), None, World(device=torch.device("cuda"))
    place.precision = precision.precision_of(place.config, place.world.device)
    policy, reference = (SimpleNamespace(has_plain_head=True, use_amp=place.precision != "fp32") for _ in range(2))
    place.models = SimpleNamespace(policy=policy, critic=None, ref_policy=reference)
    if stage is not None:
        place.settings = EngineSettings("zero.json", {}, stage, "fp32", False, False, {}, ())
        place._prepare(place.settings)
        assert policy.use_amp == reference.use_amp == (words is None)
    place._report_float32()
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert bool(warnings) == (words is not None)
    assert words is None or re.search(words, caplog.text)


def test_a_key_for_a_reference_that_is_the_policy_is_noticed(caplog):
    keys = {"use_deepspeed": False, "use_lora": True, "reward_class": {"id": "LengthMatch"}}
    check_placement(config(**keys, ref_ds_config="default"), torch.device("cpu"))
    assert "ref_ds_config: has no effect, because with use_lora the reference is the policy" in caplog.text
    caplog.clear()
    check_placement(config(**keys), torch.device("cpu"))
    assert caplog.text == ""


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


@DEPTHS
def test_a_frozen_model_waits_on_the_cpu_and_comes_for_each_scoring(depth, monkeypatch):
    """World of a device that is no CPU; the settings are those of `intent_ds_config: eval_ds_config.json`."""
    judges = [Judge(), Judge()]
    during = []
    for judge in judges:
        judge.model = Carried()
        monkeypatch.setattr(judge, "__class__", type("Asked", (Judge,), {"__call__": lambda self, ds: noted(self, ds)}))

    def noted(judge, dialogues):
        during.append(judge.model.places[-1])
        return [1.0] * len(dialogues)

    reward = inside(depth, summed(Halved(judges[0]), judges[1]))
    sharing = Placement.__new__(Placement)
    sharing.world, sharing.waiting, sharing.frozen = World(device=torch.device("meta")), [], []
    sharing.config = CONFIG.model_copy(update={"intent_ds_config": "default"})
    sharing._place_frozen(reward)
    assert [judge.model.places for judge in judges] == [["device", "cpu"]] * 2
    for round_ in (1, 2):
        score_dialogues(reward, DIALOGUES)
        assert during == ["device"] * 2 * round_
        assert [judge.model.places for judge in judges] == [["device", "cpu", *["device", "cpu"] * round_]] * 2


@DEPTHS
def test_a_frozen_model_is_shared_out(depth, monkeypatch):
    """With `intent_ds_config` of stage 3 the engine gets it; test_deepspeed.py has the engine itself."""
    made = []
    monkeypatch.setattr(
        "rlhf_dialog.distributed.placement.FrozenEngine", lambda module, world, zero: made.append((module, zero))
    )
    wanted = FrozenSettings("x.json", 3, False, {"zero_optimization": {"stage": 3}})
    monkeypatch.setattr(
        "rlhf_dialog.distributed.deepspeed_config.frozen_settings",
        lambda _, key: wanted if key.startswith("int") else None,
    )
    judge = Judge()
    sharing = Placement.__new__(Placement)
    sharing.world, sharing.waiting, sharing.frozen, sharing.config = World(), [], [], CONFIG
    sharing._place_frozen(inside(depth, Halved(judge)))
    assert made == [(judge.model, {"stage": 3})]
