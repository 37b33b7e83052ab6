"""Iterations in which memory runs out: the tokens and gradients of a run that began with the smaller size."""

import pytest
import torch

from rlhf_dialog.models.generation import PackedDecoder
from rlhf_dialog.models.part_sizes import FULL, describe_full_gpu
from rlhf_dialog.models.policy import Critic
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.training.update import PPOUpdate
from tests.parts.full_gpu import MESSAGE, fill_gpu, no_collection  # noqa: F401
from tests.parts.ranks import in_ranks
from tests.parts.trainers import make_trainer

pytestmark = pytest.mark.usefixtures("no_collection")
KEYS = {"rollout_batch_size": 8, "num_mini_batch": 2, "ppo_epoch": 1, "use_share_model": False}


class Lengths(BaseReward):
    name = "lengths"

    def __call__(self, dialogues):
        return [len(d.response) / 9 for d in dialogues]


def build(rollout=8, micro=4, **keys):
    """A trainer in float64, in which no other order of sums changes a token."""
    sizes = {"per_device_rollout_size": rollout, "per_device_microbatch_size": micro}
    return make_trainer(Lengths(), double=True, **{**KEYS, **sizes, **keys})


def run(trainer):
    """What a step of the trainer generates, and every gradient that it steps with."""
    gradients = []
    for engine in trainer.engines.values():

        def step(engine=engine, step=engine.step):
            gradients.extend(p.grad.clone() for p in engine.trained.values() if p.grad is not None)
            step()

        engine.step = step
    trainer.step()
    return [trainer.rollout.tokens.response_ids.tolist(), trainer.rollout.reward_scores.total], gradients


PHASES = {  # what runs out, which phase gets smaller, and the size with which the other run begins
    "tokens": (PackedDecoder, "step", "generation", {"rollout": 4}),
    "critic": (Critic, "forward", "reference", {"micro": 2}),
    "reward": (Lengths, "__call__", "reward lengths", {}),
    "backward": (PPOUpdate, "forward_backward", "update", {"micro": 2}),
}


@pytest.mark.parametrize(
    ("name", "at"),
    [
        pytest.param("tokens", 2, marks=pytest.mark.slow),
        pytest.param("critic", 2, marks=pytest.mark.slow),
        pytest.param("reward", 1, marks=pytest.mark.slow),
        ("backward", 2),
    ],
)
def test_a_phase_that_runs_out_is_done_again_with_half_of_the_rows(name, at, monkeypatch):
    place, function, phase, smaller = PHASES[name]
    expected = run(build(**smaller))
    trainer = build()
    fill_gpu(monkeypatch, place, function, {at})
    tokens, gradients = run(trainer)
    assert tokens == expected[0]
    assert len(gradients) == len(expected[1]) > 0
    assert all(torch.allclose(x, y, rtol=0, atol=1e-6) for x, y in zip(gradients, expected[1], strict=True))
    assert [*trainer.sizes.rows] == [phase]


def test_the_size_of_a_step_is_not_changed(monkeypatch):
    trainer = build()
    calls = fill_gpu(monkeypatch, trainer.engines["policy"].optimizer, "step", {1})
    with pytest.raises(torch.OutOfMemoryError) as raised:
        trainer.step()
    assert (calls, trainer.sizes.rows) == ([1], {})
    assert describe_full_gpu(raised.value).startswith(f"{FULL}, in the phase 'optimizer' (2.50 GiB")
    trainer = build(micro=1)
    fill_gpu(monkeypatch, PPOUpdate, "losses", {2})
    with pytest.raises(torch.OutOfMemoryError) as raised:
        trainer.step()
    assert describe_full_gpu(raised.value).startswith(f"{FULL}, in the phase 'forward', one row at a time (2.50 GiB")


def full_on_rank_1(world):
    """The error of an iteration in which the memory of rank 1 runs out in the update, and the sizes then."""
    with pytest.MonkeyPatch.context() as patch:
        trainer = make_trainer(Lengths(), double=True, world=world, **KEYS)
        if world.rank == 1:
            fill_gpu(patch, PPOUpdate, "predict", {1})
        try:
            trainer.step()
        except Exception as error:
            return type(error).__name__, describe_full_gpu(error), trainer.sizes.rows


@pytest.mark.slow
def test_an_update_of_several_ranks_is_not_done_again():
    _, (kind, text, sizes) = in_ranks(2, full_on_rank_1)
    assert (kind, sizes) == ("OutOfMemoryError", {})
    assert text.startswith(f"{FULL}, in the phase 'forward' (2.50 GiB")
