"""Systems of several seeds and draws: their statistics by hand."""

import numpy as np
import pytest

from experiments import seed_intervals
from experiments.dailydialog.systems import System, change
from rlhf_dialog.evaluation import intervals

UNITS = np.array([0, 0, 1, 1, 2, 2])


def arrays(seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 2, (6, 12)).astype(float)
    return {
        "score": rng.normal(size=6),
        "block:distinct_2": rng.random(2),
        "pooled:judge_macro_f1": counts,
        "about:seconds": np.asarray(float(seed)),
        "dialogues": UNITS,
    }


def test_the_draws_of_a_prompt_are_averaged():
    draws = [arrays(0), arrays(1)]
    system = System("one", [draws])
    mean = (draws[0]["score"] + draws[1]["score"]) / 2
    assert system.point("score") == pytest.approx(mean.mean())
    assert system.interval("score") == intervals.interval(intervals.mean_statistic(mean, UNITS))
    both = (draws[0]["block:distinct_2"] + draws[1]["block:distinct_2"]).mean() / 2
    assert system.point("distinct_2") == pytest.approx(both)
    sums = (draws[0]["pooled:judge_macro_f1"] + draws[1]["pooled:judge_macro_f1"]).sum(axis=0)
    hits, seen, wanted = np.split(sums, 3)
    assert system.point("judge_macro_f1") == pytest.approx((2 * hits / (seen + wanted)).mean())
    assert system.seconds == 0.5
    assert system.statistic("encoder_similarity") is None


def test_seeds_enter_as_seeds_on_the_same_prompts():
    start, agents = System("start", [[arrays(0)]]), System("agents", [[arrays(1)], [arrays(2)], [arrays(3)]])
    both = np.stack([arrays(seed)["score"] for seed in (1, 2, 3)])
    by_hand = intervals.mean_statistic(both, UNITS)
    assert agents.interval("score") == seed_intervals.interval(by_hand)
    moved = change(start, agents, "score")
    assert moved["mean"] == pytest.approx(both.mean() - arrays(0)["score"].mean())
    assert moved == seed_intervals.difference(start.statistic("score"), by_hand)
    assert change(start, agents, "encoder_similarity") is None
