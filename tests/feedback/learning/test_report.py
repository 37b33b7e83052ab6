"""What a night says of itself."""

import json
import math

from rlhf_dialog.feedback.learning.changed_answers import AnswerChange, ChangedAnswers
from rlhf_dialog.feedback.learning.gate import GateComparison
from rlhf_dialog.feedback.learning.report import NightReport
from rlhf_dialog.runs.services.guard import GuardLimit

USED = {"new": 48, "replayed": 16, "people": 9, "liked": 28, "disliked": 22, "pairs": 14, "sft": 13, "steps": 5}


def report(**fields):
    given = ("bot", "0003", 412, USED, {"repetitions": 2, "scores of 3": 5}, 45, "45 held-out events", "because")
    return NightReport(*given, **fields)


def test_a_night_that_changed_nothing():
    assert report().lines() == [
        "bot: champion 0003, feedback up to event 412",
        "to learn from: 48 new and 16 older examples of 9 people: 28 liked and 22 disliked answers, 14 edits and choices; "
        "13 replies of the SFT data in 5 steps",
        "left out: 5 scores of 3, 2 repetitions",
        "held out: 45 held-out events",
        "because",
    ]


def test_a_night_that_made_a_version():
    found = report(
        metrics={"steps": 30, "loss": 0.5},
        seconds=12.4,
        guards=[GuardLimit("KL", 2.0, 1.0, True)],
        comparison=GateComparison(45, 0.55, 0.61, -0.021, 0.041, 7),
        changed=ChangedAnswers(50, [AnswerChange("Is it far ?", "No .", "No , madam .")] * 7),
        removed=["0001", "0002"],
    )
    assert found.lines()[4:] == [
        "trained in 12 s: steps 30, loss 0.500",
        "guards: KL 2 (at most 1: FAILED)",
        "gate: concordance 0.610, champion 0.550: +6.0 points, 95 % interval from -2.1, standard error 4.1, 45 held-out events",
        "answered differently: 7 of the newest 50 lines, with the same random numbers (at least 5 are needed)",
        *("  line    Is it far ?", "  before  No .", "  after   No , madam .") * 3,
        "removed (keep_last): 0001, 0002",
        "because",
    ]


def test_the_record_of_the_gate_is_json():
    found = report(comparison=GateComparison(45, 0.5, 0.6, -0.02, 0.04), guards=[GuardLimit("KL", math.nan, 1.0, True)])
    record = found.gate_record()
    assert (record["concordance"], record["num_events"], record["promoted"]) == (0.6, 45, False)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["changed_lines"] is None
    unknown = report(comparison=GateComparison(45, 0.5, 0.6, math.nan, math.nan)).gate_record()
    assert (unknown["low"], unknown["standard_error"]) == (None, None)
