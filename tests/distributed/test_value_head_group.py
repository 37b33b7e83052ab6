"""The value head of a shared model has a rate of its own under every engine: Adam's first step is as long as the rate."""

import pytest

from tests.distributed.test_deepspeed_engine import start_and
from tests.parts.ranks import in_ranks
from tests.parts.steps import LR, whole_step
from tests.parts.trainers import make_trainer
from tests.parts.zero_files import write_json

pytestmark = pytest.mark.multiprocess
RATES = {"lr": 1e-3, "critic_lr": 3e-2, "opti_eps": 1e-10}
ONE_STEP = {"num_mini_batch": 1, "ppo_epoch": 1, "use_max_grad_norm": False}


def longest_moves(world, keys):
    """How far the first step moves the value head's weights and all others at most."""
    trainer = make_trainer(world=world, ref_seed=3, ref_model="another", **RATES, **ONE_STEP, **keys)
    moved = whole_step(trainer)["moved"]
    sizes = {name: float(change.abs().max()) * LR for name, change in moved.items()}
    return [max(size for name, size in sizes.items() if ("value_head" in name) is is_head) for is_head in (True, False)]


def first_step(_, keys):
    return start_and(longest_moves, keys) if "use_deepspeed" in keys else longest_moves(_, keys)


@pytest.mark.parametrize(("engine", "warmup"), [("ddp", 0), ("ddp", 1), ("fsdp", 0), ("fsdp", 1), ("zero2", 0)])
def test_head_and_trunk_move_by_their_own_rates(engine, warmup, tmp_path):
    keys = {"ddp": {}, "fsdp": {"use_fsdp": True}}.get(engine)
    if keys is None:
        pytest.importorskip("deepspeed")
        keys = {"use_deepspeed": True, "deepspeed_config": write_json(tmp_path, {"stage": 2})}
    expected = [3e-2, 0 if warmup else 1e-3]
    for moves in in_ranks(2, first_step, {**keys, "critic_warmup": warmup}):
        assert moves == pytest.approx(expected, rel=1e-3)
