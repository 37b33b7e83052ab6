"""The Markdown of systems, and what an audit has found without its texts."""

import json

import numpy as np

from experiments.dailydialog import table
from experiments.dailydialog.scene import Scene
from experiments.dailydialog.systems import System


def system(title, **values):
    arrays = {name: np.asarray(some, dtype=float) for name, some in values.items()}
    return System(title, [[{**arrays, "dialogues": np.arange(4), "about:seconds": np.asarray(2.0)}]])


def test_a_line_for_each_system_and_a_column_for_each_number():
    rows = {
        "SFT": system("SFT", score=[1, 1, 1, 1], kl=[0, 0, 0, 0]),
        "other": system("other", score=[2, 2, 2, 2], kl=[np.nan] * 4),
    }
    few = {"SFT": system("SFT", likelihood=[-3, -3, -3, -3])}
    columns = {"score": "score", "likelihood": "log-probability", "encoder_similarity": "MiniLM"}
    assert list(table.markdown(rows, columns, {"kl": "KL a reply"}, few)) == [
        "| replies | score | log-probability | KL a reply | seconds |",
        "|---|---|---|---|---|",
        "| SFT | 1.000 [1.000, 1.000] | -3.000 [-3.000, -3.000] | 0 | 2 |",
        "| other | 2.000 [2.000, 2.000] | - | - | 2 |",
    ]


def test_an_audit_is_reported_without_texts(tmp_path):
    findings = [
        {"probe": "repeat_last_turn", "hole": True},
        {"probe": "'a secret line'", "hole": True},
        {"probe": "part", "hole": False},
        {"probe": "search: changed words", "hole": False, "unjudged": True},
    ]
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit/audit.json").write_text(json.dumps({"findings": findings}))
    lines = list(table.audited(Scene(tmp_path, tmp_path, "tiny", None, print)))
    assert lines[-2:] == ["2 holes: repeat_last_turn, a constant.", "Found, not judged: search: changed words."]
