"""The least work of an update, against a count by hand."""

from types import SimpleNamespace

import pytest

from benchmarks import work
from tests.parts import tiny


def test_the_least_work_of_an_update():
    lm = tiny.gpt2()  # 2 layers of width 32, 259 tokens
    config = SimpleNamespace(ppo_epoch=5)
    trainer = SimpleNamespace(models=SimpleNamespace(policy=SimpleNamespace(lm=lm), critic=None), config=config)
    laps = [work.Lap(0.0, 0, [3, 4], [2, 1], 0.0), work.Lap(0.0, 0, [3, 4], [2, 1], 0.0)]
    trunk, attention, head = 2 * (12 * 32 * 32 * 2) * 10, 2 * 2 * 32 * (25 + 25), 2 * 259 * 32 * 3
    assert work.num_weights(lm.base_model) == 12 * 32 * 32 * 2
    assert work.update_gflop(trainer, laps) == pytest.approx(15 * (trunk + attention + head) / 1e9)
    trainer.models.critic = lm
    assert work.update_gflop(trainer, laps) == pytest.approx(15 * (2 * (trunk + attention) + head) / 1e9)
    assert work.update_speed(60.0, 2.0, 120.0) == {
        "least_gflop": 60.0,
        "gflops": 30.0,
        "share_of_matmul": 0.25,
    }
