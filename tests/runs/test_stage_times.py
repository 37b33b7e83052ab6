"""The seconds of the stages of a smoke test."""

from rlhf_dialog.runs import stage_times


def test_stages_add_up_and_come_in_their_order(monkeypatch):
    monkeypatch.setattr(stage_times.time, "perf_counter", iter([10.0, 11.5, 20.0, 20.25, 30.0, 34.0]).__next__)
    times = stage_times.StageTimes()
    for stage in ("checkpoint", "data", "checkpoint"):
        with times.measure(stage):
            pass
    times.add({"time/rollout": 2.0, "time/eval": 0.5, "time/wait": 9.0, "objective/kl": 1.0})
    assert list(times.in_order().items()) == [
        ("data", 0.25),
        ("rollout", 2.0),
        ("evaluation", 0.5),
        ("checkpoint", 5.5),
    ]
