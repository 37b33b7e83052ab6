"""How often the guard of a run raises an alarm, counted over simulated runs of 20 validations.

A prompt's number in a validation has a deviation of 1, and 8 prompts of a dialogue share half of the variance. The score rises in
every validation. False alarms are those of runs whose judge stays, power is the share of runs whose judge falls that are stopped.
"""

import math

import numpy as np
import pytest

from rlhf_dialog.runs.services.guard import Guard, ValidationSnapshot

pytestmark = pytest.mark.slow

RUNS, VALIDATIONS = 500, 20


def raises(rng, sizes, fall, shared):
    """Whether a run with dialogues of these sizes raises an alarm, whose judge falls by `fall` from a validation to the next."""
    dialogues = np.repeat(np.arange(len(sizes)), sizes)
    guard, count = Guard("judge_x"), len(dialogues)
    for i in range(VALIDATIONS):
        own, together = rng.normal(size=count), rng.normal(size=len(sizes))[dialogues]
        judge = math.sqrt(1 - shared) * own + math.sqrt(shared) * together - fall * i
        score = 5.0 * i + rng.normal(size=count)
        if guard.add(ValidationSnapshot(i, score.tolist(), judge.tolist(), dialogues.tolist())):
            return True
    return False


def share(sizes, fall=0.0, shared=0.5):
    rng = np.random.default_rng(0)
    return sum(raises(rng, sizes, fall, shared) for _ in range(RUNS)) / RUNS


def play(expected):
    return 3 * math.sqrt(expected * (1 - expected) / RUNS)


@pytest.mark.parametrize(
    "sizes", [[1] * 64, [8] * 8, [8] * 32, [1, 2, 4, 6, 8, 10, 12, 21]], ids=["64 of 1", "8 of 8", "32 of 8", "uneven"]
)
def test_at_most_one_run_in_twenty_has_a_false_alarm(sizes):
    found = share(sizes)
    assert found <= 0.05 + play(0.05), found


@pytest.mark.parametrize(
    ("sizes", "fall", "expected"),
    [([1] * 64, 0.1, 0.58), ([1] * 64, 0.2, 0.99), ([8] * 8, 0.2, 0.36), ([8] * 8, 0.5, 0.99)],
)
def test_the_power_that_is_written_down(sizes, fall, expected):
    found = share(sizes, fall)
    assert abs(found - expected) <= play(expected), found
