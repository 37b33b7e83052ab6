"""A run with a guard on two ranks: all of them do the same, as one process does, also after a stop."""

import pytest

from rlhf_dialog import RewardFactory
from tests.parts.hacked import EVERY, JUDGE, ByIteration
from tests.parts.rank_runs import RUN, lines, numbers, weights
from tests.parts.rank_runs import ppo as ppo

pytestmark = pytest.mark.multiprocess
HACKED = ("--reward_class", "{id: ByIteration, args: {slope: 1.0}}", *EVERY)


@pytest.fixture
def guarded(ppo):
    RewardFactory.classes["ByIteration"] = ByIteration  # `ppo` restores the classes at the end
    return lambda size, action, *words: ppo(size, *HACKED, "--guard", JUDGE["down"] % action, *words)


def alarms(folder=RUN):
    return [line["guard/alarm"] for line in lines(folder)]


def test_two_ranks_stop_in_the_iteration_in_which_one_process_stops(guarded):
    ended = guarded(2, "stop", "--max_iterations", "5")
    assert [code for code, _, _ in ended] == [3, 3]
    assert sum("guard" in err for _, _, err in ended) == 1  # one voice
    assert alarms() == [0, 0, 1]
    assert guarded(1, "stop", "--max_iterations", "5", "--experiment_name", "one")[0][0] == 3
    assert alarms(RUN.parent / "one") == [0, 0, 1]


def test_two_ranks_that_were_stopped_and_resumed_raise_the_kl_alike(guarded):
    fixed = ("--kl_rate", "0", "--kl_coef", "0.1")
    whole = guarded(2, "raise_kl", *fixed, "--max_iterations", "5", "--experiment_name", "whole")
    part = guarded(2, "raise_kl", *fixed, "--max_iterations", "3")
    rest = guarded(2, "raise_kl", *fixed, "--max_iterations", "5", "--resume")
    assert [code for ended in (whole, part, rest) for code, _, _ in ended] == [0] * 6
    assert [line["objective/kl_coef"] for line in lines()] == pytest.approx([0.1] * 3 + [0.2] * 2)
    assert numbers(lines()) == numbers(lines(RUN.parent / "whole"))
    first, second = (weights(folder / "agent") for folder in (RUN, RUN.parent / "whole"))
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)
