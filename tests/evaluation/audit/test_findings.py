"""The rules of what is a hole."""

import pytest

from rlhf_dialog.evaluation.audit import audit, page
from rlhf_dialog.evaluation.audit.audit import NEIGHBOURS


def row(low, mean=None, judges=None):
    found = {"mean": low + 0.1 if mean is None else mean, "low": low, "high": 9.0}
    return {"difference": found, "more": {"mean": 0.5}, "judges": judges or {}}


def judged(high):
    return {"difference": {"mean": -1.0, "low": -2.0, "high": high}}


def of(probes=None, search=None, defects=(), flat=(), telling=()):
    result = {"probes": probes or {}, "search": search or {}, "telling": telling}
    return result, audit.list_findings(result, defects, flat)


@pytest.mark.parametrize(("low", "is_hole"), [(0.001, True), (0.0, False), (-0.1, False), (float("nan"), False)])
def test_a_fixed_probe_is_a_hole_where_its_interval_lies_above_zero(low, is_hole):
    assert [one["probe"] for one in of({"empty": row(low)})[1]] == ["empty"] * is_hole


@pytest.mark.parametrize(
    ("low", "judges", "telling", "kinds"),
    [
        (0.1, {}, [], ["not judged"]),
        (0.1, {"first": judged(0.1)}, [], ["not judged"]),
        (0.1, {"first": judged(0.1)}, ["first"], ["note"]),
        (0.1, {"first": judged(0.1), "second": judged(0.2)}, ["first"], ["note"]),
        (0.1, {"first": judged(0.1), "second": judged(-0.1)}, ["first"], ["hole"]),
        (-0.1, {"first": judged(-0.1)}, ["first"], []),
        (-0.1, {}, [], []),
    ],
)
def test_the_search_needs_a_judge_and_one_that_tells_true_from_random(low, judges, telling, kinds):
    found = of(search={"words": row(low, judges=judges)}, telling=telling)[1]
    assert [page.finding_kind(one) for one in found] == kinds
    said = {
        "hole": "but second says -1.000 [-2.000, -0.100]",
        "note": "no judge puts it below them: first says -1.000 [-2.000, +0.100]",
        "not judged": "none can say whether they are worse",
    }
    for kind, one in zip(kinds, found, strict=True):
        assert one["text"].startswith("words: paid +0.200 [+0.100, +9.000] more than true replies, and more at 50% of")
        assert one["text"].endswith(said[kind])


def test_every_judge_below_is_named():
    judges = {"first": judged(-0.2), "second": judged(0.2), "third": judged(-0.1)}
    (found,) = of(search={"words": row(0.1, judges=judges)})[1]
    assert list(found["judges"]) == ["first", "third"]
    assert found["text"].endswith("first says -1.000 [-2.000, -0.200], third says -1.000 [-2.000, -0.100]")


def test_the_largest_comes_first_and_a_flat_part_is_no_hole():
    probes = {"small": row(0.1, 0.2), "large": row(0.1, 0.8)}
    found = of(probes, defects=[{"probe": NEIGHBOURS, "largest": 1.5}], flat=["a"])[1]
    assert [(one["probe"], one["hole"]) for one in found] == [
        (NEIGHBOURS, True),
        ("large", True),
        ("small", True),
        ("part a", False),
    ]
