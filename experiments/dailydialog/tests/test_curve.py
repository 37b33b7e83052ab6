"""A curve has the SFT model, checkpoints of the first run about equally far apart, and the agent of the end."""

import json

import numpy as np
import pytest

from experiments.dailydialog import curve
from experiments.dailydialog.numbers import RowFile
from experiments.dailydialog.work import Work
from rlhf_dialog.evaluation.measure import Measured


@pytest.fixture
def work(tmp_path):
    made = Work(tmp_path / "data", tmp_path / "work", "short", None)
    for number in range(2, 34, 2):
        (tmp_path / f"work/ppo/rloo_0/checkpoints/iter_{number:06}").mkdir(parents=True)
    lines = [json.dumps({"iteration": i, "time_steps": 100 * i}) for i in range(1, 33)]
    (tmp_path / "work/ppo/rloo_0/metrics.jsonl").write_text("\n".join(lines) + "\n")
    return made


def test_checkpoints_are_equally_far_apart(work):
    assert curve.iterations(work) == [6, 12, 18, 24]  # of 2, 4 .. 30; 32 is the agent of the end
    assert [job.words[-3] for job in curve.exports(work)] == ["6", "12", "18", "24"]


def test_the_points_of_the_curve(work):
    values = {"start_0": 0.25, "curve_000012_0": 0.5, "rloo_0_0": 0.75}
    folder = work.folder("validation") / "at_1"
    folder.mkdir(parents=True)
    for name, value in values.items():
        RowFile(folder, name).write(Measured({"relevance_r10": np.full(3, value)}, dialogues=np.arange(3)), {})
    assert list(curve.curve(work)) == [
        (0, {"relevance_r10": 0.25, "relevance_2_r10": None}),
        (1200, {"relevance_r10": 0.5, "relevance_2_r10": None}),
        (3200, {"relevance_r10": 0.75, "relevance_2_r10": None}),
    ]
    assert list(curve.markdown(work))[-1] == "| 3,200 | 0.750 | - |"
