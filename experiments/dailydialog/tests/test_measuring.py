"""Which rows are measured, and that the test split waits for `chosen.json`."""

import json
from collections import Counter

import pytest

from experiments.dailydialog import measuring, record
from experiments.dailydialog.scene import Scene
from rlhf_dialog.errors import UserError


@pytest.fixture
def scene(tmp_path):
    made = Scene(tmp_path / "data", tmp_path / "work", "short", None, print)
    for stage in measuring.MEASURED:
        record.begin(made.folder(stage), {"stage": stage})
        record.end(made.folder(stage))
    return made


def test_start_and_agents_have_four_draws_and_others_one(scene):
    names = [row["name"] for row in measuring.all_rows(scene, 4, measuring.COUNTS, True)]
    assert len(set(names)) == len(names)
    draws = Counter(name.rpartition("_")[0] for name in names)
    assert {name: draws[name] for name in ("start", "rloo_0", "rloo_2", "gae_0", "dpo", "sft_on_best")} == {
        **dict.fromkeys(("start", "rloo_0", "rloo_2", "gae_0"), 4),
        **dict.fromkeys(("dpo", "sft_on_best"), 1),
    }
    assert {"best_of_2", "best_of_8", "mean_logit_shift_0", "mean_logit_shift_2", "learned_bias"} <= set(names)


def test_test_is_not_read_before_something_was_chosen(scene, monkeypatch):
    monkeypatch.setattr(Scene, "run", lambda *_, **__: pytest.fail("the test split was read"))
    with pytest.raises(UserError, match=r"chosen\.json: is not there"):
        measuring.test(scene)
    chosen = scene.work / measuring.CHOSEN
    chosen.write_text(json.dumps({"configuration": "of something else", "validation": {}}))
    with pytest.raises(UserError, match="is of other models"):
        measuring.test(scene)
