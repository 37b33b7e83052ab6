"""Where the time goes: seconds by name."""

import pytest
import torch

from rlhf_dialog.training import clock
from rlhf_dialog.training.clock import Clock


def test_seconds_of_one_name_add_up(monkeypatch):
    ticks = iter([10.0, 12.0, 20.0, 20.5, 30.0, 34.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(ticks))
    watch = Clock(torch.device("cpu"))
    for name in ("rollout", "reward", "rollout"):
        with watch.measured(name):
            pass
    assert watch.seconds == {"rollout": pytest.approx(2.0 + 4.0), "reward": pytest.approx(0.5)}


def test_what_a_gpu_was_given_counts_where_it_was_given(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    with Clock(torch.device("cuda", 0)).measured("update"):
        pass
    assert waited == [torch.device("cuda", 0)] * 2  # before and after
