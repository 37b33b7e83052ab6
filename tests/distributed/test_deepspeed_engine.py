"""DeepSpeed's engine: named when it is not installed; its ranks make the step of one plain process."""

import importlib

import pytest
import torch

from rlhf_dialog.distributed import placement
from rlhf_dialog.distributed.deepspeed_engine import DeepSpeedEngine, load_deepspeed
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.models import policy as policy_module
from rlhf_dialog.training.rollout import Rollout
from tests.parts.ranks import in_ranks
from tests.parts.steps import LR, distance
from tests.parts.trainers import collect_next, collect_stored, make_trainer, numbers_of, parameters
from tests.parts.zero_files import ZERO3, write_json


def test_without_deepspeed_the_extra_is_named(monkeypatch):
    def absent(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UserError, match=r"install it from the checkout: pip install -e \"\.\[deepspeed\]\""):
        load_deepspeed(torch.device("cpu"))


def new_value_head(lm):
    """Not at zero, where nothing below it has a gradient of the values."""
    head = policy_module.ValueHead(lm.get_output_embeddings().in_features, 1)
    head.weight.data = torch.arange(head.weight.numel()).sin().view_as(head.weight) / 10
    head.bias.data.fill_(0.3)
    return head


def learner(rollout: Rollout | None, rows, ranks: World, **keys):
    """A trainer that descends with plain SGD on its rank's rows of a stored rollout."""
    original = placement.new_optimizer
    placement.new_optimizer = lambda module, config, lr: torch.optim.SGD(module.parameters(), lr=LR)
    original_head, policy_module.new_value_head = policy_module.new_value_head, new_value_head
    try:
        trainer = make_trainer(
            ref_seed=3, ref_model="another", world=ranks, num_mini_batch=1, ppo_epoch=1, lr=LR, critic_lr=LR, **keys
        )
    finally:
        placement.new_optimizer, policy_module.new_value_head = original, original_head
    if rollout is not None:
        collect_stored(trainer, rollout, rows[ranks.rank])
    return trainer


def whole(trainer) -> dict:
    """All weights of the trained modules, on every rank."""
    found = {}
    with trainer.placement.writable_weights():
        for name, engine in trainer.engines.items():
            found |= {f"{name}.{key}": p.clone() for key, p in parameters(engine.module).items()}
    return found


def one_step(trainer) -> dict:
    before = whole(trainer)
    metrics = trainer.step()
    after = whole(trainer)
    return {"moved": {key: (before[key] - after[key]) / LR for key in before}, "metrics": metrics}


def with_deepspeed(ranks: World, rollout, rows, keys) -> dict:
    """One step through DeepSpeed, and how many numbers of each weight this rank holds."""
    trainer = learner(rollout, rows, ranks, use_deepspeed=True, **keys)
    assert all(isinstance(engine, DeepSpeedEngine) for engine in trainer.engines.values())
    held = {}
    for engine in trainer.engines.values():
        for name, p in engine.module.named_parameters():
            held[name] = (p.numel(), p.ds_tensor.numel() if hasattr(p, "ds_tensor") else p.numel(), whole_count(p))
    return one_step(trainer) | {"held": held}


def whole_count(p) -> int:
    return getattr(p, "ds_numel", p.numel())


def start_and(work, *args):
    """In a forked rank: the group that DeepSpeed wants, then the work."""
    from rlhf_dialog.config.schema import Config
    from rlhf_dialog.distributed import process_group

    raw = {"model_path": "m", "env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}}
    return work(process_group.start(Config.model_validate(raw | {"device": "cpu", "use_deepspeed": True})), *args)


def deepspeed_rank(_: World, *args):
    return start_and(with_deepspeed, *args)


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.whole_run
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("rows", [[[0, 1, 2, 3, 4, 5, 6]], [[0, 1, 2, 3], [4, 5, 6]], [[0, 1, 2, 3, 4, 5, 6], []]])
@pytest.mark.parametrize("share", [True, False])
def test_ranks_of_deepspeed_make_the_step_of_one_plain_process(tmp_path, stage, rows, share):
    keys = {"per_device_microbatch_size": 2, "rollout_batch_size": 7, "use_share_model": share, "max_grad_norm": 1e6}
    pytest.importorskip("deepspeed")
    torch.manual_seed(0)
    rollout = collect_next(learner(None, None, World(), **keys))
    expected = one_step(learner(rollout, [list(range(7))], World(), **keys))
    zero = ZERO3 if stage == 3 else {"stage": stage}
    given = keys | {"deepspeed_config": write_json(tmp_path, zero)}
    for found in in_ranks(len(rows), deepspeed_rank, rollout, rows, given):
        assert distance(found["moved"], expected["moved"]) <= 1e-4
        for name, value in numbers_of(expected["metrics"]).items():
            assert found["metrics"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
        for full, own, total in found["held"].values():
            assert (full, own) == ((0, -(-total // len(rows))) if stage == 3 else (total, total))
