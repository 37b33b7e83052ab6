"""The classifier two-sample test on users of whom it is known whether they differ."""

from random import Random

import pytest

from experiments.users import two_sample
from experiments.users.fidelity import UserTurns
from experiments.users.two_sample import distinguished

pytest.importorskip("sklearn")
WORDS = [f"w{i}" for i in range(30)]


def talks(seed, count=40, extra=(), share=0.0):
    """Dialogues of random words; `extra` is added to a share of the turns."""
    rng = Random(seed)
    return [
        UserTurns(
            [
                " ".join([*rng.choices(WORDS, k=rng.randint(2, 6)), *(extra if rng.random() < share else ())])
                for _ in range(rng.randint(1, 5))
            ]
        )
        for _ in range(count)
    ]


def test_users_of_one_kind_are_not_distinguished():
    found = distinguished(talks(1), talks(2))
    for kind in ("turns", "dialogues"):
        assert found[kind]["low"] < 0.5 < found[kind]["high"]
        assert 0.3 < found[kind]["mean"] < 0.7


def test_a_share_of_turns_that_give_themselves_away_is_found():
    """A turn with the word is recognised; of the others, which are alike, nothing is: right in (1 + share) / 2."""
    calls = []
    found = distinguished(talks(1, 100), talks(2, 100, ("unreal",), 0.6), after_fold=lambda: calls.append(1))
    assert found["turns"]["mean"] == pytest.approx(0.8, abs=0.05)
    assert found["turns"]["low"] < 0.8 < found["turns"]["high"]
    assert found["dialogues"]["low"] > found["turns"]["mean"]
    assert {"unreal", "unreal >"} <= {one["ngram"] for one in found["telling"]}
    share = next(one for one in found["telling"] if one["ngram"] == "unreal")
    assert (share["real"], round(share["simulated"], 1)) == (0, 0.6)
    assert len(calls) == 10


def test_the_interval_is_wider_than_that_of_independent_texts():
    """Nadeau & Bengio 2003: the variance of 5 folds is multiplied by (1/5 + 1/4) / (1/5), and a share stays a share."""
    assert two_sample._widened({"mean": 0.5, "low": 0.4, "high": 0.6}) == pytest.approx(
        {"mean": 0.5, "low": 0.35, "high": 0.65}
    )
    assert two_sample._widened({"mean": 0.9, "low": 0.8, "high": 1.0})["high"] == 1
