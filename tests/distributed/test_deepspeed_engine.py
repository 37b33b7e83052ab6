"""DeepSpeed's engine: what it asks of the library and writes into checkpoints; its ranks make the step of one process."""

import importlib
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rlhf_dialog.distributed import process_group, zero_checkpoint
from rlhf_dialog.distributed.deepspeed_config import EngineSettings
from rlhf_dialog.distributed.deepspeed_engine import DeepSpeedEngine, load_deepspeed
from rlhf_dialog.distributed.engine import Engine
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.models import policy as policy_module
from tests.parts.ranks import CONFIG, in_ranks
from tests.parts.steps import LR, distance, sgd_learner, whole_step
from tests.parts.trainers import collect_next, make_trainer, numbers_of
from tests.parts.zero_files import ZERO3, write_json


def test_without_deepspeed_the_extra_is_named(monkeypatch):
    def absent(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UserError, match=r"install it from the checkout: pip install -e \"\.\[deepspeed\]\""):
        load_deepspeed(torch.device("cpu"))


ALONE = World()


class Library:
    """DeepSpeed's engine and optimizer of stage 1 or 2, as far as ours calls them: a norm that is inf lowers the scale."""

    class Optimizer(SimpleNamespace):
        norm = 24.0

        def scaled_global_norm(self):
            return torch.tensor(self.norm)

    def __init__(self, numbers: int = 4):
        self.flat, self.calls = torch.arange(float(numbers)), []
        moments = {"step": torch.tensor(3.0), "exp_avg": torch.full((numbers,), 7.0)}
        self.optimizer = self.Optimizer(
            optimizer=SimpleNamespace(state={self.flat: moments}),
            single_partition_of_fp32_groups=[self.flat],
            loss_scaler=SimpleNamespace(cur_scale=8.0, min_scale=1.0, mode="dynamic"),
            loss_scale=8.0,
        )

    def backward(self, loss, scale_wrt_gas):
        self.calls.append((float(loss), scale_wrt_gas))

    def step(self):
        self.skipped = not self.optimizer.scaled_global_norm().isfinite()
        self.optimizer.loss_scaler.cur_scale /= 2 if self.skipped else 1
        self.calls.append("step")

    def was_step_applied(self):
        return not self.skipped


def zero_engine(library: Library, precision: str = "fp16", stage: int = 2, world: World = ALONE) -> DeepSpeedEngine:
    return DeepSpeedEngine(
        nn.Linear(1, 1), library, world, EngineSettings("x.json", {}, stage, precision, False, False)
    )


def test_the_norm_is_that_of_the_unscaled_gradient_and_a_step_that_is_skipped_stops_the_run():
    library = Library()
    engine = zero_engine(library, world=World(size=3))
    engine.backward(torch.tensor(2.0))
    assert library.calls == [(6.0, False)]  # DeepSpeed averages over the ranks
    assert engine.grad_norm() == 3.0
    engine.step()
    engine.zero_grad()
    assert library.calls[1:] == ["step"]
    library.optimizer.norm = math.inf
    with pytest.raises(RunStopped, match="skipped"):
        engine.step()


@pytest.mark.parametrize(
    ("precision", "norm", "before", "after"),
    [("fp16", math.inf, 8.0, 4.0), ("fp16", math.nan, 1.0, 0.5), ("fp16", 3.0, 8.0, 8.0), ("bf16", math.inf, 8.0, 8.0)],
)
def test_a_gradient_without_a_step_is_discarded_and_only_an_overflow_of_fp16_lowers_the_scale(
    precision, norm, before, after
):
    library = Library()
    engine = zero_engine(library, precision)
    library.optimizer.loss_scaler.cur_scale = before
    engine.norm = norm
    engine.zero_grad()
    assert (library.calls, library.optimizer.loss_scaler.cur_scale) == (["step"], after)
    assert (engine.lowered is not None) == (after < before)
    assert library.optimizer.scaled_global_norm() == 24.0
    engine.zero_grad()
    assert library.calls == ["step"]


def test_partitions_are_written_by_each_rank_and_come_back(tmp_path):
    library, other, world = Library(), Library(), World()
    plain = Engine(nn.Linear(1, 1), torch.optim.SGD([nn.Parameter(torch.ones(1))]), world)
    engines = {"policy": zero_engine(library), "critic": plain}
    assert zero_checkpoint.whole_optimizers(engines) == {"critic": plain.optimizer}
    assert zero_checkpoint.write_partitions(tmp_path, {"critic": plain}, world) is None
    zero_checkpoint.write_partitions(tmp_path, engines, world)
    staging = zero_checkpoint.write_partitions(tmp_path, engines, world)  # the first one was interrupted
    assert [path.name for path in staging.iterdir()] == ["policy_rank0.safetensors"]
    state = zero_checkpoint.describe(engines, world)
    scaler = {"cur_scale": 8.0, "min_scale": 1.0}
    assert state == {"zero": {"policy": {"stage": 2, "world_size": 1, "precision": "fp16", "scaler": scaler}}}
    assert zero_checkpoint.describe({"critic": plain}, world) == {}
    other.flat.zero_()
    other.optimizer.optimizer.state.clear()
    other.optimizer.loss_scaler.cur_scale = 1.0
    zero_checkpoint.read_partitions(staging, state, {"policy": zero_engine(other)}, world)
    assert torch.equal(other.flat, library.flat)
    moments = other.optimizer.optimizer.state[other.flat]
    assert (float(moments["step"]), moments["exp_avg"].tolist()) == (3.0, [7.0] * 4)
    assert other.optimizer.loss_scaler.cur_scale == 8.0
    with pytest.raises(ValueError, match="4 weights, but this run needs 5"):
        zero_checkpoint.read_partitions(staging, state, {"policy": zero_engine(Library(5))}, world)
    with pytest.raises(ValueError, match=r"partitions .*: 1\.weights"):
        engines["policy"].restore_partitions(engines["policy"].partitions() | {"1.weights": library.flat}, {})
    zero_checkpoint.forget_staging(tmp_path)
    assert not staging.exists()


def test_a_checkpoint_of_another_sharing_is_refused(tmp_path):
    engines = {"policy": zero_engine(Library())}
    saved = zero_checkpoint.describe(engines, World(size=4))
    zero_checkpoint.refuse_another_partitioning(tmp_path, {}, {}, World())
    zero_checkpoint.refuse_another_partitioning(tmp_path, saved, engines, World(size=4))
    for state, others, size, words in (
        (saved, {}, 4, "stage 2 in fp16 on 4 processes, but this run has no ZeRO"),
        ({}, engines, 4, "no ZeRO, but"),
        (saved, engines, 2, "on 4 processes, but .* on 2 processes"),
        (saved, {"policy": zero_engine(Library(), stage=1)}, 4, "stage 2 .* stage 1"),
        (saved, {"policy": zero_engine(Library(), "bf16")}, 4, "fp16 .* bf16"),
    ):
        with pytest.raises(UserError, match=words):
            zero_checkpoint.refuse_another_partitioning(tmp_path, state, others, World(size=size))


def with_deepspeed(ranks: World, rollout, rows, keys) -> dict:
    """One step through DeepSpeed, and how many numbers of each weight this rank holds."""
    trainer = sgd_learner(rollout, rows, ranks, use_deepspeed=True, **keys)
    assert all(isinstance(engine, DeepSpeedEngine) for engine in trainer.engines.values())
    held = {}
    for engine in trainer.engines.values():
        for name, p in engine.module.named_parameters():
            held[name] = p.numel(), getattr(p, "ds_tensor", p).numel(), getattr(p, "ds_numel", p.numel())
    return whole_step(trainer) | {"held": held}


def start_and(work, *args):
    """In a forked rank: the group that DeepSpeed wants, then the work."""
    return work(process_group.start(CONFIG.model_copy(update={"use_deepspeed": True})), *args)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("stage", "rows", "more"),
    [
        (1, [[0, 1, 2, 3], [4, 5, 6]], {"use_share_model": False}),
        (2, [[0, 1, 2, 3, 4, 5, 6], []], {"use_share_model": True}),
        (3, [[0, 1, 2, 3, 4, 5, 6], []], {"use_share_model": False}),
        (3, [[0, 1, 2, 3, 4, 5], [6]], {"per_device_microbatch_size": 3, "entropy_coef": 0.0}),
    ],
)
def test_ranks_of_deepspeed_make_the_step_of_one_plain_process(tmp_path, stage, rows, more, monkeypatch):
    """At last with four positions at a time: the head is gathered once a pass, whatever a rank has to predict."""
    keys = {"per_device_microbatch_size": 2, "rollout_batch_size": 7, "max_grad_norm": 1e6, **more}
    pytest.importorskip("deepspeed")
    if "entropy_coef" in more:
        monkeypatch.setattr(policy_module, "LOGITS_AT_ONCE", 4 * 300)
    torch.manual_seed(0)
    rollout = collect_next(sgd_learner(None, None, World(), **keys))
    expected = whole_step(sgd_learner(rollout, [list(range(7))], World(), **keys))
    zero = ZERO3 if stage == 3 else {"stage": stage}
    given = keys | {"deepspeed_config": write_json(tmp_path, zero)}
    for found in in_ranks(len(rows), lambda _, *args: start_and(with_deepspeed, *args), rollout, rows, given):
        assert distance(found["moved"], expected["moved"]) <= 1e-4
        for name, value in numbers_of(expected["metrics"]).items():
            assert found["metrics"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
        for full, own, total in found["held"].values():
            assert (full, own) == ((0, -(-total // len(rows))) if stage == 3 else (total, total))


RATES = {"lr": 1e-3, "critic_lr": 3e-2, "opti_eps": 1e-10}
ONE_STEP = {"num_mini_batch": 1, "ppo_epoch": 1, "use_max_grad_norm": False}


def longest_moves(world, keys):
    """How far the first step moves the value head's weights and all others at most."""
    trainer = make_trainer(world=world, ref_seed=3, ref_model="another", **RATES, **ONE_STEP, **keys)
    moved = whole_step(trainer)["moved"]
    sizes = {name: float(change.abs().max()) * LR for name, change in moved.items()}
    return [max(size for name, size in sizes.items() if ("value_head" in name) is is_head) for is_head in (True, False)]


def first_step(world, keys):
    return start_and(longest_moves, keys) if "use_deepspeed" in keys else longest_moves(world, keys)


@pytest.mark.multiprocess
@pytest.mark.parametrize(("engine", "warmup"), [("ddp", 0), ("ddp", 1), ("fsdp", 0), ("fsdp", 1), ("zero2", 0)])
def test_head_and_trunk_move_by_their_own_rates_under_every_engine(engine, warmup, tmp_path):
    """Adam's first step is as long as the rate."""
    keys = {"ddp": {}, "fsdp": {"use_fsdp": True}}.get(engine)
    if keys is None:
        pytest.importorskip("deepspeed")
        keys = {"use_deepspeed": True, "deepspeed_config": write_json(tmp_path, {"stage": 2})}
    expected = [3e-2, 0 if warmup else 1e-3]
    for moves in in_ranks(2, first_step, {**keys, "critic_warmup": warmup}):
        assert moves == pytest.approx(expected, rel=1e-3)
