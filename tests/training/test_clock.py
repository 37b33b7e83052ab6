"""Where the time goes: seconds by name."""

import pytest
import torch

from rlhf_dialog.training import rollout as clock
from tests.parts.pretended_gpu import pretended_gpu


def test_seconds_of_one_name_add_up(monkeypatch):
    ticks = iter([5.0, 10.0, 12.0, 20.0, 20.5, 30.0, 34.0, 36.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(ticks))
    watch = clock.Clock(torch.device("cpu"))
    for name in ("rollout", "reward", "rollout"):
        with watch.measure(name):
            pass
    assert watch.seconds == {"rollout": pytest.approx(2.0 + 4.0), "reward": pytest.approx(0.5)}
    assert watch.elapsed == 31.0


def test_a_gpu_is_waited_for_once_when_the_seconds_are_read(monkeypatch):
    ticks = iter([10.0, 12.0, 20.0, 20.5])
    with pretended_gpu() as gpu:
        monkeypatch.setattr(torch.cuda.Event, "record", lambda self: setattr(self, "seconds", next(ticks)))
        watch = clock.Clock(torch.device("cuda", 0))
        for _ in range(2):
            with watch.measure("update"):
                pass
        assert gpu.num_waits == 0
        assert watch.seconds == {"update": pytest.approx(2.0 + 0.5)}
        assert watch.seconds == {"update": pytest.approx(2.0 + 0.5)}  # nothing counts twice
        assert gpu.num_waits == 1
