"""DeepSpeed's engine: named when it is not installed; its ranks make the step of one plain process."""

import importlib

import pytest
import torch

from rlhf_dialog.distributed.deepspeed_engine import DeepSpeedEngine, load_deepspeed
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.models import policy as policy_module
from tests.parts.ranks import in_ranks
from tests.parts.steps import distance, sgd_learner, whole_step
from tests.parts.trainers import collect_next, numbers_of
from tests.parts.zero_files import ZERO3, write_json


def test_without_deepspeed_the_extra_is_named(monkeypatch):
    def absent(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UserError, match=r"install it from the checkout: pip install -e \"\.\[deepspeed\]\""):
        load_deepspeed(torch.device("cpu"))


def with_deepspeed(ranks: World, rollout, rows, keys) -> dict:
    """One step through DeepSpeed, and how many numbers of each weight this rank holds."""
    trainer = sgd_learner(rollout, rows, ranks, use_deepspeed=True, **keys)
    assert all(isinstance(engine, DeepSpeedEngine) for engine in trainer.engines.values())
    held = {}
    for engine in trainer.engines.values():
        for name, p in engine.module.named_parameters():
            held[name] = (p.numel(), p.ds_tensor.numel() if hasattr(p, "ds_tensor") else p.numel(), whole_count(p))
    return whole_step(trainer) | {"held": held}


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
@pytest.mark.parametrize(
    ("stage", "rows", "share"),
    [
        (1, [[0, 1, 2, 3], [4, 5, 6]], False),
        (2, [[0, 1, 2, 3, 4, 5, 6], []], True),
        (3, [[0, 1, 2, 3, 4, 5, 6]], True),
        (3, [[0, 1, 2, 3, 4, 5, 6], []], False),
    ],
)
def test_ranks_of_deepspeed_make_the_step_of_one_plain_process(tmp_path, stage, rows, share):
    keys = {"per_device_microbatch_size": 2, "rollout_batch_size": 7, "use_share_model": share, "max_grad_norm": 1e6}
    pytest.importorskip("deepspeed")
    torch.manual_seed(0)
    rollout = collect_next(sgd_learner(None, None, World(), **keys))
    expected = whole_step(sgd_learner(rollout, [list(range(7))], World(), **keys))
    zero = ZERO3 if stage == 3 else {"stage": stage}
    given = keys | {"deepspeed_config": write_json(tmp_path, zero)}
    for found in in_ranks(len(rows), deepspeed_rank, rollout, rows, given):
        assert distance(found["moved"], expected["moved"]) <= 1e-4
        for name, value in numbers_of(expected["metrics"]).items():
            assert found["metrics"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
        for full, own, total in found["held"].values():
            assert (full, own) == ((0, -(-total // len(rows))) if stage == 3 else (total, total))


@pytest.mark.multiprocess
@pytest.mark.parametrize("keys", [{}, {"use_share_model": False, "entropy_coef": 0.0}])
def test_ranks_of_zero3_may_need_different_numbers_of_chunks_of_logits(tmp_path, monkeypatch, keys):
    """Six responses and one, four positions at a time: the head is gathered once a pass, whatever a rank has to predict."""
    pytest.importorskip("deepspeed")
    monkeypatch.setattr(policy_module, "LOGITS_AT_ONCE", 4 * 300)
    keys = {"per_device_microbatch_size": 3, "rollout_batch_size": 7, "max_grad_norm": 1e6, **keys}
    torch.manual_seed(0)
    rollout = collect_next(sgd_learner(None, None, World(), **keys))
    expected = whole_step(sgd_learner(rollout, [list(range(7))], World(), **keys))
    given = keys | {"deepspeed_config": write_json(tmp_path, ZERO3)}
    for found in in_ranks(2, deepspeed_rank, rollout, [[0, 1, 2, 3, 4, 5], [6]], given):
        assert distance(found["moved"], expected["moved"]) <= 1e-4
        assert all(full == 0 for full, _, _ in found["held"].values())
