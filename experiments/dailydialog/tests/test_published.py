"""The columns that others have published: the sums by hand, and what is said of them."""

import json

import numpy as np
import pytest

from experiments.dailydialog import published
from experiments.dailydialog.numbers import RowFile
from experiments.dailydialog.work import Work
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.measure import Measured
from rlhf_dialog.evaluation.replies import Replies

PROMPTS = [Dialogue(["Hello ."], reference="good day"), Dialogue(["Well ?"], reference="not at all")]


class Kept:
    """Rows of a table without models."""

    def __init__(self, folder):
        self.folder = folder

    def stored(self, name):
        file = RowFile(self.folder, name)
        rows = file.replies()
        return rows and Replies(
            [p.with_reply(one["response"], False) for p, one in zip(PROMPTS, rows, strict=True)], [2, 2]
        )


@pytest.fixture
def work(tmp_path, monkeypatch):
    made = Work(tmp_path, tmp_path, "tiny", None)
    folder = made.folder("test") / "at_1"
    for name in ("start_0", "rloo_0_0", "rloo_1_0", *published.SPOKEN):
        said = ["good evening", "not at all"] if name == "rloo_1_0" else ["good day", "not at all"]
        RowFile(folder, name).keep(
            Replies([p.with_reply(text, False) for p, text in zip(PROMPTS, said, strict=True)], [2, 2])
        )
        RowFile(folder, name).write(Measured({"judge_accuracy": np.array([1.0, 0.0])}), {})
    for number, speed in enumerate((100.0, 200.0)):
        run = made.folder("ppo") / f"rloo_{number}"
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text(json.dumps({"iteration": 1, "time_steps": 5, "FPS": speed}) + "\n")
    monkeypatch.setattr(published, "table_of", lambda *_: Kept(folder))
    return made


def test_own_rows_stand_beside_the_published_ones(work):
    lines = [line for line in published.markdown(work) if line.startswith("| ")]
    rows = {line.split(" | ")[0][2:]: line.split(" | ")[1:] for line in lines}
    assert rows["OpenRL, PPO"] == ["13.2", "0.181", "0.153", "0.292", "0.090", "0.435", "18.7 |"]
    # equal texts: ROUGE is 1, BLEU too; a word of two is missed once by one of the two agents: `eou` counts as a third one
    assert rows["SFT"][:3] == ["-", "1.000", "1.000"]
    assert rows["SFT"][4:] == ["1.000", "0.500", "2.5 |"]
    assert rows["PPO, rloo"][0] == "150.0"
    assert float(rows["PPO, rloo"][1]) == pytest.approx((1 + (2 / 3 + 1) / 2) / 2, abs=1e-3)


def test_replies_that_are_lost(work):
    RowFile(work.folder("test") / "at_1", "start_0").texts.unlink()
    with pytest.raises(UserError, match="lost the replies of start_0"):
        list(published.markdown(work))
