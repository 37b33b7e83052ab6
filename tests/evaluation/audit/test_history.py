"""What is new, still open and closed, over a history of audits."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.audit.history import Changes, add, compared, read_history


def entry(found, tried=("empty", "copy", "length"), config="a.yaml"):
    findings = [{"probe": name, "hole": True, "mean": 0.5} for name in found]
    settings = {"seed": 0}
    return {
        **{"config": config, "config_hash": "0" * 16, "date": "2026-01-02T03:04:05+00:00"},
        **{"settings": settings, "tried": list(tried), "findings": findings},
    }


def test_a_finding_is_new_then_open_then_closed_then_new_again(tmp_path):
    path = tmp_path / "audits.json"
    assert add(path, entry(["empty"])) == Changes(new=["empty"], open=[], closed=[])
    assert add(path, entry(["empty", "copy"])) == Changes(new=["copy"], open=["empty"], closed=[])
    assert add(path, entry(["copy"])) == Changes(new=[], open=["copy"], closed=["empty"])
    assert add(path, entry(["copy", "empty"])) == Changes(new=["empty"], open=["copy"], closed=[])
    kept = json.loads(path.read_text(encoding="utf-8"))["audits"]
    assert [[one["probe"] for one in audit["findings"]] for audit in kept] == [
        ["empty"],
        ["empty", "copy"],
        ["copy"],
        ["copy", "empty"],
    ]


def test_what_was_not_tried_stays_open():
    history = [entry(["search", "empty"], ["search", "empty"]), entry([], ["empty"])]
    assert compared(history[:1], history[1]) == Changes(new=[], open=[], closed=["empty"])
    assert compared(history, entry(["search"], ["search"])) == Changes(new=[], open=["search"], closed=[])


def test_another_configuration_has_a_history_of_its_own():
    assert compared([entry(["empty"])], entry(["empty"], config="b.yaml")).new == ["empty"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import rlhf_dialog", "is not a history of audits"),
        ("[]", "is not a history of audits"),
        ('{"format_version": 1, "audits": [{"config": "a"}]}', "is not a history of audits: audits.0.config_hash"),
        ('{"format_version": 2, "audits": []}', "has format_version 2"),
    ],
)
def test_another_file_is_refused_and_stays_as_it_is(text, words, tmp_path):
    path = tmp_path / "my_train.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        add(path, entry([]))
    assert path.read_text(encoding="utf-8") == text


def test_without_a_file_there_is_no_history(tmp_path):
    assert read_history(tmp_path / "none.json")["audits"] == []
