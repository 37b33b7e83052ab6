"""Rows that were written are read as systems; what is not there is left out."""

import numpy as np

from experiments.dailydialog.numbers import RowFile
from experiments.dailydialog.reading import systems, title_of, validation_table
from experiments.dailydialog.scene import Scene
from rlhf_dialog.evaluation.measure import Measured


def test_seeds_and_draws_are_one_system(tmp_path):
    scene = Scene(tmp_path, tmp_path, "tiny", None, print)  # rloo 0 and 1, gae 0; two draws on test
    values = {"start_0": 1, "start_1": 2, "rloo_0_0": 3, "rloo_0_1": 4, "rloo_1_0": 5, "rloo_1_1": 6, "best_of_2": 7}
    for stage in ("test", "validation"):
        for name, value in values.items():
            measured = Measured({"score": np.full(3, float(value))}, dialogues=np.arange(3))
            RowFile(scene.folder(stage) / "at_1", name).folder.mkdir(parents=True, exist_ok=True)
            RowFile(scene.folder(stage) / "at_1", name).write(measured, {"seconds": 1.0})
    found = systems(scene, "test", 1.0)
    assert {title: one.point("score") for title, one in found.items()} == {
        "SFT": 1.5,
        "PPO, rloo": 4.5,
        "SFT, best of 2": 7.0,
    }
    assert len(found["PPO, rloo"].seeds) == 2
    assert systems(scene, "test", 0.7) == {}
    means = validation_table(scene)  # of one draw
    assert {title: row["score"] for title, row in means["1"].items()} == {
        "SFT": 1.0,
        "PPO, rloo": 4.0,
        "SFT, best of 2": 7.0,
    }


def test_titles():
    assert [title_of(name) for name in ("best_of_8", "gae", "true_replies", "dpo", "smollm2")] == [
        "SFT, best of 8",
        "PPO, gae",
        "true replies",
        "DPO",
        "smollm2",
    ]
