"""The price of LengthHold, by hand: it moves once a rollout, by the mean over all ranks, and survives a resume."""

import json

import pytest
import torch.distributed as dist

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards import LengthHold
from rlhf_dialog.rewards.scoring import begin_scoring, load_state, metrics_of, state_of
from tests.parts.ranks import in_ranks


def said(*lengths):
    return [Dialogue(["a b"], "w " * length) for length in lengths]


def rollout(reward, iteration, *lengths):
    begin_scoring(reward, "rollout", iteration)
    scores = reward(said(*lengths))
    return scores, metrics_of(reward)


def test_the_first_rollout_is_held_and_the_price_follows_the_mean():
    reward = LengthHold(rate=0.5, gain=2.0)
    assert rollout(reward, 1, 4, 16) == (
        [0.0, 0.0],
        {"length_hold/price": 0.0, "length_hold/words": 10.0, "length_hold/held": 10.0},
    )
    assert rollout(reward, 2, 12, 12)[0] == [0.0, 0.0]  # the price moves after the scores
    assert reward.price == pytest.approx(2 * 0.2 + 0.5 * 0.2)
    scores, found = rollout(reward, 3, 10, 15, 5)
    assert scores == [pytest.approx(0.0), pytest.approx(-0.25), pytest.approx(0.25)]
    assert found["length_hold/price"] == pytest.approx(0.5 * 0.2)  # the mean is held; the debt stays
    rollout(reward, 4, 5)
    assert reward.price == pytest.approx(2 * -0.5 + 0.5 * 0.2 - 0.5 * 0.5)


def test_a_length_of_your_own_is_held_from_the_start():
    reward = LengthHold(words=5, rate=0, gain=1)
    assert rollout(reward, 1, 10)[0] == [0.0]
    assert reward(said(6)) == [pytest.approx(-1 * 0.2)]


def test_it_learns_from_rollouts_alone():
    reward = LengthHold(words=5, rate=0.5, gain=1)
    for purpose in ("validation", "evaluation"):
        begin_scoring(reward, purpose, 3)
        reward(said(50))
    assert metrics_of(reward)["length_hold/price"] == 0
    rollout(reward, 1, 10)
    price = reward.price
    begin_scoring(reward, "validation", 1)
    reward(said(1, 1, 1))
    assert (metrics_of(reward)["length_hold/price"], reward.price) == (price, price)


def test_the_price_has_bounds():
    reward = LengthHold(words=1, max_price=1.5)
    for iteration in range(3):
        rollout(reward, iteration, 100)
    assert (reward.price, reward.debt) == (1.5, 1.5)
    rollout(reward, 4, 0)
    assert reward.price == pytest.approx(-2.0 + 1.5 - 0.2)
    assert rollout(LengthHold(words=1), 1, 100)[1]["length_hold/price"] == 4.0


def test_at_least_one_word_is_held():
    assert rollout(LengthHold(), 1, 0, 0)[1]["length_hold/held"] == 1.0


def test_a_resumed_reward_goes_on_bit_for_bit():
    lengths = [(7, 9), (11, 12), (13, 5), (2, 9)]
    whole, first, second = LengthHold(), LengthHold(), LengthHold()
    for i, some in enumerate(lengths[:2]):
        assert rollout(whole, i, *some) == rollout(first, i, *some)
    load_state(second, json.loads(json.dumps(state_of(first))))
    for i, some in enumerate(lengths[2:]):
        assert rollout(whole, i + 2, *some) == rollout(second, i + 2, *some)


def ends_with(world) -> list:
    """The price after a rollout of which rank 0 has three responses and rank 1 has one, or none."""
    reward, found = LengthHold(words=10, rate=0.1, gain=1), []
    for own in ([(10, 20, 30), (40,)], [(10, 20, 30), ()]):
        begin_scoring(reward, "rollout", 1)
        reward(said(*own[world.rank]))
        found.append(metrics_of(reward)["length_hold/words"])
    return [*found, reward.price]


@pytest.mark.multiprocess
def test_all_ranks_move_the_price_by_the_mean_of_all():
    assert not dist.is_initialized()
    for found in in_ranks(2, ends_with):
        assert found == [25.0, 20.0, pytest.approx(1.0 + 0.1 * (1.5 + 1.0))]
