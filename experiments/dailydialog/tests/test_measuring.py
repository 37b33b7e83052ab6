"""Which rows are measured, and that the test split waits for `chosen.json`."""

from collections import Counter

import pytest

from experiments.dailydialog import measuring
from experiments.dailydialog.work import Work
from rlhf_dialog.errors import UserError


@pytest.fixture
def work(tmp_path):
    made = Work(tmp_path / "data", tmp_path / "work", "short", None)
    for folder in measuring.trained_models(made):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"weights")
    return made


def test_start_and_agents_have_four_draws_and_others_one(work):
    names = [row["name"] for row in measuring.all_rows(work, 4, measuring.COUNTS, True)]
    assert len(set(names)) == len(names)
    draws = Counter(name.rpartition("_")[0] for name in names)
    assert {name: draws[name] for name in ("start", "rloo_0", "rloo_2", "gae_0", "dpo", "sft_on_best")} == {
        **dict.fromkeys(("start", "rloo_0", "rloo_2", "gae_0"), 4),
        **dict.fromkeys(("dpo", "sft_on_best"), 1),
    }
    assert {"best_of_2", "best_of_8", "mean_logit_shift_0", "mean_logit_shift_2", "learned_bias"} <= set(names)


def test_test_is_not_read_before_something_was_chosen_of_these_models(work, monkeypatch):
    ran = []
    monkeypatch.setattr(measuring, "run_jobs", lambda jobs, **_: ran.extend(jobs))
    with pytest.raises(UserError, match=r"chosen\.json: is not there"):
        measuring.test(work)
    (work.folder("ppo") / work.size.agents[0].folder / "checkpoints").mkdir()
    monkeypatch.setattr(measuring, "validation_table", lambda work: {})
    measuring.validate(work)
    ran.clear()
    measuring.test(work)
    assert [job.name for job in ran] == ["at_1", "at_0.7"]
    (work.folder("ppo") / "rloo_2/agent/model.safetensors").write_bytes(b"others")
    with pytest.raises(UserError, match="is of other models"):
        measuring.test(work)
