"""Blind reading: what the page holds and what it hides, the count of verdicts, exact intervals and agreement."""

import json
import re

import pytest

from experiments.blind import reading as blind

ROWS = [
    {
        "index": i,
        "prompt": ["Hello .", f"Question {i} </script> ?"],
        "replies": {
            "after": {"response": f"long answer {i}"},
            "before": {"response": f"old {i}"},
            "best": {"response": "x"},
        },
    }
    for i in range(20)
]


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_shows_both_replies_and_no_name():
    reading = blind.reading(ROWS, ("after", "before"), 12, seed=1)
    data, key = data_of(reading.page), json.loads(reading.key)
    assert data["page"] == key["page"]
    assert set(data) == {"page", "pairs"}
    assert [set(pair) for pair in data["pairs"]] == [{"turns", "left", "right"}] * 12
    for pair, sides in zip(data["pairs"], key["pairs"], strict=True):
        replies = ROWS[sides["index"]]["replies"]
        assert (pair["left"], pair["right"]) == tuple(replies[sides[side]]["response"] for side in ("left", "right"))
        assert pair["turns"] == ROWS[sides["index"]]["prompt"]
    assert len({sides["index"] for sides in key["pairs"]}) == 12
    assert {sides["left"] for sides in key["pairs"]} == {"after", "before"}
    assert not re.search("after|before", reading.page)
    assert "://" not in reading.page  # nothing is loaded from elsewhere


def test_the_seed_decides_prompts_and_sides():
    first, again, other = (blind.reading(ROWS, ("after", "before"), 9, seed) for seed in (1, 1, 2))
    assert first == again
    assert json.loads(first.key)["pairs"] != json.loads(other.key)["pairs"]


def saved(folder, key, verdicts, **more):
    path = folder / "verdicts.json"
    path.write_text(json.dumps({"page": key["page"], "reader": "Ann", "verdicts": verdicts, **more}), encoding="utf-8")
    return path


def test_verdicts_are_counted_for_the_system_not_for_the_side(tmp_path):
    key = json.loads(blind.reading(ROWS, ("after", "before"), 6, 3).key)
    wanted = ["after", "after", "before", "tie", "after", "tie"]
    sides = [
        name if name == "tie" else next(s for s in ("left", "right") if pair[s] == name)
        for name, pair in zip(wanted, key["pairs"], strict=True)
    ]
    outcome, winners = blind.outcome_of(key, saved(tmp_path, key, sides))
    assert winners == wanted
    assert (outcome.reader, outcome.wins, outcome.losses, outcome.ties) == ("Ann", 3, 1, 2)
    assert outcome.interval == blind.exact_interval(3, 4)


@pytest.mark.parametrize(
    ("wins", "decided", "low", "high"),
    # binom.test(wins, decided)$conf.int of R
    [(0, 10, 0.0, 0.3084971), (10, 10, 0.6915029, 1.0), (7, 10, 0.3475471, 0.9332605)],
)
def test_exact_intervals(wins, decided, low, high):
    assert blind.exact_interval(wins, decided) == pytest.approx((low, high), abs=1e-6)


def test_agreement_by_hand():
    """Of four pairs three the same: .75; by chance (2 x 1 + 1 x 2 + 1 x 1) / 16."""
    first, second = ["a", "a", "b", "tie"], ["a", "b", "b", "tie"]
    assert blind.agreement(first, second) == pytest.approx((0.75, (0.75 - 5 / 16) / (1 - 5 / 16)))
    assert blind.agreement(["a", "a"], ["a", "a"]) == (1.0, 1.0)
