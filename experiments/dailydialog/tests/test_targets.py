"""The targets, each on numbers for which it is known to be met or missed."""

import numpy as np
import pytest

from experiments.dailydialog.systems import System
from experiments.dailydialog.targets import relative, targets

N = 400


def system(title, r10, r1=0.1, copied=0.02, truncated=0.0, seeds=1, near=None):
    """A system whose replies have exactly these shares, each prompt a dialogue by itself."""
    numbers = {f"{judge}_r10": shares(r10) for judge in ("relevance", "relevance_2")}
    numbers |= {f"{judge}_r1": shares(r1) for judge in ("relevance", "relevance_2")}
    numbers |= {"copied_two": shares(copied), "truncated": shares(truncated), "dialogues": np.arange(N)}
    numbers |= {} if near is None else {"encoder_similarity": shares(near), "mutual_information": shares(near)}
    acts = np.tile(np.array([[1.0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]]), (N, 1))
    return System(title, [[numbers | {"pooled:judge_macro_f1": acts, "about:seconds": np.asarray(1.0)}]] * seeds)


def shares(share):
    """The same prompts first, so that a larger share has those of a smaller one too."""
    return (np.arange(N) < round(share * N)).astype(float)


def words(start, agents, best, on_best, bias, read=None, matched=None):
    found = targets(start, agents, best, on_best, [bias], read, matched or start)
    return {target.name: target.word for target in found}


def test_a_large_gain_meets_all():
    start = system("SFT", 0.25, 0.04)
    found = words(start, system("PPO", 0.40, 0.10, seeds=3), system("best", 0.30), system("on best", 0.31), start)
    of_pretrained = [name for name, word in found.items() if word == "not measured"]
    assert [name.split("'")[0] for name in of_pretrained] == ["MiniLM", "MiniLM", "SmolLM2"]
    assert set(found.values()) == {"met", "not measured"}
    assert len(found) == 18


def test_the_gain_is_needed_at_equal_distinct_2_too():
    start, agents = system("SFT", 0.25, 0.04), system("PPO", 0.40, 0.10)
    found = words(start, agents, start, start, start, matched=system("SFT, distinct-2 of PPO", 0.34))
    missed = [name for name, word in found.items() if word == "missed"]
    assert [name.split(",")[0] for name in missed] == [
        "R@10 +25% by the convolution at equal distinct-2",
        "R@10 +25% by the bag at equal distinct-2",
    ]


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        (
            {"r10": 0.29},
            [
                f"R@10 +25 % by the {judge}{beside}, low end above +15 %"
                for beside in ("", " at equal distinct-2")
                for judge in ("convolution", "bag")
            ],
        ),
        ({"r1": 0.05}, ["R@1 +40 % by the convolution", "R@1 +40 % by the bag"]),
        ({"copied": 0.2}, ["copies of two turns no worse"]),
        ({"truncated": 0.3}, ["truncation no worse"]),
    ],
)
def test_each_is_missed_by_its_own_number(changed, missed):
    agents = {"r10": 0.40, "r1": 0.10} | changed
    low = system("other", 0.26)
    found = words(system("SFT", 0.25, 0.04), system("PPO", **agents), low, low, system("bias", 0.25))
    assert [name.replace("%", " %").replace("  ", " ") for name, word in found.items() if word == "missed"] == missed


def test_a_relative_gain_is_that_of_the_means():
    gain = relative(system("SFT", 0.25), system("PPO", 0.40), "relevance_r10")
    assert gain["mean"] == pytest.approx(0.6)
    assert gain["low"] < 0.6 < gain["high"]
    assert relative(system("SFT", 0.0), system("PPO", 0.40), "relevance_r10") is None
