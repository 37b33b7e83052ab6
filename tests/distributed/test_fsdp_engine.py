"""FSDP2: what is sharded, what a rollout needs of other ranks (nothing), and how weights and moments become whole."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from rlhf_dialog.distributed.fsdp_engine import sharded_parts, units
from rlhf_dialog.distributed.strategy import FsdpSettings
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.models import policy as policy_module
from rlhf_dialog.models.policy import Policy
from tests.parts.ranks import in_ranks
from tests.parts.steps import distance, sgd_learner, whole_step
from tests.parts.tiny import gpt2, llama
from tests.parts.trainers import collect_next, make_trainer

ASKED = FsdpSettings("use_fsdp: true")
KINDS = {"gpt2": gpt2, "llama": llama}  # embeddings and head of the first are one weight


@pytest.mark.parametrize("kind", KINDS)
def test_the_layers_of_a_model_are_its_units(kind):
    policy = Policy(KINDS[kind](0), with_value_head=True)
    layers = list(policy.lm.base_model.h if kind == "gpt2" else policy.lm.base_model.layers)
    assert units(policy, ASKED) == layers
    assert units(nn.Linear(2, 2), ASKED) == []
    named = FsdpSettings("accelerate launch", wrap=("GPT2MLP" if kind == "gpt2" else "LlamaMLP",))
    assert units(policy, named) == [layer.mlp for layer in layers]
    with pytest.raises(
        UserError, match=r"accelerate launch: fsdp_transformer_layer_cls_to_wrap: no module .* OPTDecoder"
    ):
        units(policy, FsdpSettings("accelerate launch", wrap=("OPTDecoderLayer",)))


def sharded_rank(world: World, kind: str) -> dict:
    trainer = make_trainer(new_lm=KINDS[kind], world=world, use_fsdp=True, rollout_batch_size=4)
    policy, ids = trainer.models.policy, torch.arange(5).unsqueeze(0)
    weights = dict(policy.named_parameters())
    with trainer.placement.rollout(), torch.no_grad():
        for _ in range(40 if world.is_main else 1):  # the other rank has one token to say
            logits = policy.lm(ids).logits
    trainer.step()
    with trainer.placement.whole_weights():
        whole = {name: tuple(p.shape) for name, p in policy.named_parameters()}
        moments = {tuple(state["exp_avg"].shape) for state in trainer.engines["policy"].optimizer.state.values()}
    return {
        "units": len(sharded_parts(policy)),
        "held": {name: p.to_local().numel() for name, p in weights.items() if isinstance(p, DTensor)},
        "names": set(weights),
        "sum": logits.double().sum().item(),
        "whole": whole if world.is_main else {},
        "moments": moments if world.is_main else set(),
    }


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", KINDS)
def test_each_rank_has_its_part_and_a_rollout_waits_for_nobody(kind):
    lm = KINDS[kind](0).eval()
    shapes = {f"lm.{name}": tuple(p.shape) for name, p in lm.named_parameters()}
    with torch.no_grad():
        expected = lm(torch.arange(5).unsqueeze(0)).logits.double().sum().item()
    ranks = in_ranks(2, sharded_rank, kind)
    for found in ranks:
        assert found["units"] == 2 + 1
        assert found["names"] == {*shapes, "value_head.weight", "value_head.bias"}
        assert set(found["held"]) == found["names"]
        assert found["sum"] == pytest.approx(expected, rel=1e-5)
    for name, shape in shapes.items():
        assert sum(found["held"][name] for found in ranks) == torch.Size(shape).numel()
        assert ranks[0]["whole"][name] == shape
    assert ranks[0]["moments"] == {*shapes.values(), (1,), (1, lm.get_output_embeddings().in_features)}


def fsdp_rank(world: World, rollout, rows, keys) -> dict:
    trainer = sgd_learner(rollout, rows, world, use_fsdp=True, **keys)
    head = trainer.models.policy.lm.get_output_embeddings()
    return whole_step(trainer) | {"is_unit": isinstance(head, FSDPModule)}


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("classes", "keys"),
    [("LlamaDecoderLayer", {"kl_in": "loss", "kl_coef": 0.5}), ("LlamaDecoderLayer,Linear", {})],
)
def test_ranks_may_need_different_numbers_of_chunks_of_logits(monkeypatch, classes, keys):
    """Six responses and one, four positions at a time, with a head that is gathered with the root or, as `Linear`, alone."""
    monkeypatch.setattr(policy_module, "LOGITS_AT_ONCE", 4 * 300)
    keys = {"per_device_microbatch_size": 3, "rollout_batch_size": 7, "new_lm": llama, **keys}
    torch.manual_seed(0)
    rollout = collect_next(sgd_learner(None, [], World(), **keys))
    expected = whole_step(sgd_learner(rollout, [list(range(7))], World(), **keys))
    asked = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_TRANSFORMER_CLS_TO_WRAP": classes}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    for found in in_ranks(2, fsdp_rank, rollout, [[0, 1, 2, 3, 4, 5], [6]], keys):
        assert found["is_unit"] == classes.endswith("Linear")
        assert distance(found["moved"], expected["moved"]) <= 1e-4
