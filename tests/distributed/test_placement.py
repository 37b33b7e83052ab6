"""Where models are: what a run refuses before it loads any, what is gathered, and frozen models that come for each scoring."""

import json
import os
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rlhf_dialog.distributed import deepspeed_engine, frozen_models
from rlhf_dialog.distributed.accelerator import Preparer
from rlhf_dialog.distributed.deepspeed_config import EngineSettings
from rlhf_dialog.distributed.deepspeed_engine import DeepSpeedEngine
from rlhf_dialog.distributed.frozen_models import FrozenModels
from rlhf_dialog.distributed.placement import Placement, check_placement
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.rewards import Scorer
from tests.parts.judges import DIALOGUES, Halved, Judge, inside, summed
from tests.parts.ranks import CONFIG
from tests.parts.tiny import gpt2
from tests.parts.zero_files import config

FAR = World(device=torch.device("meta"))  # a device that is no CPU


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


def test_a_frozen_model_waits_on_the_cpu_and_comes_for_each_scoring():
    class Asked(Judge):
        def __call__(self, dialogues):
            during.append(self.model.places[-1])
            return [1.0] * len(dialogues)

    judges, during = [Asked(), Asked()], []
    for judge in judges:
        judge.model = Carried()
    reward = inside(2, summed(Halved(judges[0]), judges[1]))
    FrozenModels(CONFIG.model_copy(update={"intent_ds_config": "default"}), None, reward, FAR)
    assert [judge.model.places for judge in judges] == [["device", "cpu"]] * 2
    for round_ in (1, 2):
        Scorer(reward).score(DIALOGUES)
        assert during == ["device"] * 2 * round_
        assert [judge.model.places for judge in judges] == [["device", "cpu", *["device", "cpu"] * round_]] * 2


@pytest.mark.parametrize("part", ["lm", "lm.base_model"])
def test_a_reference_waits_on_the_cpu_and_comes_when_it_is_called(part):
    policy = Policy(gpt2()).requires_grad_(False)
    frozen = FrozenModels(CONFIG.model_copy(update={"ref_ds_config": "default"}), policy, Judge(), FAR)
    assert (frozen.waiting, policy.lm.device.type) == ([policy], "cpu")
    with suppress(RuntimeError):  # on this device nothing is computed
        policy.get_submodule(part)(torch.zeros(1, 2, dtype=torch.long, device="meta"))
    assert policy.lm.device.type == "meta"


@pytest.mark.parametrize("away", [{}, {"offload_param": {"device": "cpu"}}])
def test_a_frozen_model_of_stage_3_is_partitioned_by_an_engine_without_an_optimizer(tmp_path, monkeypatch, away):
    made = []
    library = SimpleNamespace(initialize=lambda **keys: made.append(keys) or ("engine", None))
    monkeypatch.setattr(frozen_models, "load_deepspeed", lambda device: library)
    (tmp_path / "parts.json").write_text(json.dumps({"zero_optimization": {"stage": 3} | away}))
    judge = Judge()
    asked = config(tmp_path, use_deepspeed=False, intent_ds_config="parts.json")
    frozen = FrozenModels(asked, None, judge, World(size=3))
    assert (frozen.partitioned, frozen.waiting) == ([("engine", judge.model)], [])
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0} | away
    sizes = {"train_batch_size": 3, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    assert made[0]["config"] == {"zero_optimization": zero} | sizes


def placed(config, partitioned=(), waiting=(), **engines):
    """A Placement that has only these."""
    placement = Placement.__new__(Placement)
    placement.config, placement.engines, placement.fsdp, placement.precision = config, engines, None, "bf16"
    placement.frozen = SimpleNamespace(partitioned=list(partitioned), waiting=list(waiting))
    return placement


def zero_engine(stage, module=None):
    engine = DeepSpeedEngine.__new__(DeepSpeedEngine)
    engine.stage, engine.module, engine.model = stage, module, module
    return engine


def test_weights_of_stage_3_are_gathered_for_a_rollout_and_for_judging_those_of_rewards(monkeypatch):
    gathered = []
    monkeypatch.setattr(deepspeed_engine, "gather_weights", lambda e: nullcontext(gathered.append(e)))
    policy, critic, judge, waiting = Policy(gpt2()), Policy(gpt2()), nn.Linear(1, 1), Carried()
    frozen = [("of a judge", judge), ("of the reference", policy)]
    placement = placed(CONFIG, frozen, [waiting], policy=zero_engine(3, policy), critic=zero_engine(2, critic))
    with placement.rollout():
        assert gathered == [policy, "of a judge", "of the reference"]
    assert waiting.places == ["device", "cpu"]
    with placement.judging():
        assert gathered[3:] == ["of a judge"]


@pytest.mark.parametrize(
    ("stage", "half", "keys", "precision", "use_amp"),
    [
        (2, "fp32", {}, "bf16", True),
        (3, "fp32", {"precision": "bf16"}, "bf16", True),
        (3, "fp32", {}, "fp32", False),
        (2, "bf16", {}, "bf16", False),
        (2, "fp16", {}, "fp16", False),
    ],
)
def test_the_reference_has_the_engines_precision_and_autocast_is_off_where_it_would_keep_copies(
    stage, half, keys, precision, use_amp
):
    policy, reference = Policy(gpt2(), use_amp=True), Policy(gpt2(), use_amp=True)
    placement = placed(config(**keys))
    placement.models = SimpleNamespace(policy=policy, critic=None, ref_policy=reference)
    placement._set_precision(EngineSettings("x.json", {}, stage, half, False, False))
    assert (placement.precision, policy.use_amp, reference.use_amp) == (precision, use_amp, use_amp)
    assert reference.lm.dtype == {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[half]
    assert policy.lm.dtype == torch.float32


class Adapted(nn.Module):
    """A policy's adapter, a critic's, and a frozen base, under the names that peft gives them."""

    def __init__(self):
        super().__init__()
        self.base_layer, self.value_head = nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1)
        self.lora_A = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in ("policy", "critic")})


def test_an_adapter_is_exchanged_without_what_is_frozen_or_of_another_engine():
    policy, preparer = nn.ModuleDict({"layer": Adapted()}), Preparer.__new__(Preparer)
    policy.adapter, preparer.world = "policy", World()
    prepared = DistributedDataParallel.__new__(DistributedDataParallel)
    preparer.accelerator = SimpleNamespace(prepare_model=lambda module: prepared)
    assert preparer.data_parallel(policy) is prepared
    others = ["layer.base_layer.weight", "layer.base_layer.bias", "layer.lora_A.critic.weight"]
    assert {*policy._ddp_params_and_buffers_to_ignore} == {*others}


def test_accelerate_is_told_what_the_run_has_decided_and_fp16_weights_need_a_gpu(monkeypatch):
    with pytest.raises(UserError, match="fp16 weights need a GPU"):
        check_placement(config(use_fp16=True), torch.device("cpu"))
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", "zero_stage")
    before, preparer = dict(os.environ), Preparer.__new__(Preparer)
    preparer.world = World(device=torch.device("cuda", 1))
    with preparer._answers():
        assert (os.environ["ACCELERATE_TORCH_DEVICE"], os.environ["ACCELERATE_BYPASS_DEVICE_MAP"]) == ("cuda:1", "true")
        assert not {"ACCELERATE_USE_CPU", "ACCELERATE_CONFIG_DS_FIELDS"} & set(os.environ)
    assert dict(os.environ) == before
