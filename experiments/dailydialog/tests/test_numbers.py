"""The files of a row: what was written is read, and a damaged one is one sentence."""

import numpy as np
import pytest

from experiments.dailydialog.numbers import RowFile
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.intervals import Statistic, ratio
from rlhf_dialog.evaluation.measure import Measured
from rlhf_dialog.evaluation.replies import Replies


def test_numbers_and_replies_come_back(tmp_path):
    file = RowFile(tmp_path / "rows", "start_0")
    assert (file.is_there(), file.replies()) == (False, None)
    file.keep(Replies([Dialogue(["Hi ."], "Hello ."), Dialogue(["Why ?"], "So", truncated=True)], [3, 2]))
    assert file.replies() == [
        {"response": "Hello .", "truncated": False, "tokens": 3},
        {"response": "So", "truncated": True, "tokens": 2},
    ]
    pooled = {"sacrebleu": Statistic(np.ones((2, 3)), ratio)}
    measured = Measured({"score": np.array([1.0, np.nan])}, {"distinct_2": np.array([0.5])}, pooled, np.array([0, 1]))
    file.write(measured, {"seconds": 2.5})
    assert file.is_there()
    arrays = file.read()
    assert set(arrays) == {"score", "block:distinct_2", "pooled:sacrebleu", "about:seconds", "dialogues"}
    assert np.array_equal(arrays["score"], [1.0, np.nan], equal_nan=True)
    assert float(arrays["about:seconds"]) == 2.5


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "start_0.npz").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"start_0\.npz: cannot be read"):
        RowFile(tmp_path, "start_0").read()
