"""What several processes know together: sums, words, errors; and how one voice speaks for them."""

import math

import numpy as np
import pytest
import torch

from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.training import ppo
from tests.parts.ranks import in_ranks


def episodes(lengths: list[list[int]], seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Numbers (B, T) and their mask for each rank; every rank has a width of its own, garbage where the mask is False."""
    drawn, ranks = np.random.default_rng(seed), []
    for own in lengths:
        width = max(own, default=1) + 1
        mask = np.arange(width)[None] < np.array(own, dtype=int)[:, None]
        numbers = drawn.normal(3, 2, (len(own), width))
        ranks.append((np.where(mask, numbers, np.nan), mask))
    return ranks


def flat(ranks: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    return np.concatenate([numbers[mask] for numbers, mask in ranks])


def statistics(world: World, values: list, returns: list) -> dict:
    (x, mask), (y, _) = values[world.rank], returns[world.rank]
    numbers, mask, wanted = torch.tensor(x), torch.tensor(mask), torch.tensor(y)
    norm = ppo.ValueNormalizer(beta=0.9)
    norm.update(numbers, mask, world.sum)
    norm.update(2 * numbers, mask, world.sum)
    return {
        "mean": ppo.masked_mean(numbers, mask, world.sum).item(),
        "whitened": ppo.whiten(numbers, mask, world.sum)[mask].tolist(),
        "explained": ppo.explained_variance(numbers, wanted, mask, world.sum).item(),
        "norm": (norm.mean, norm.deviation),
    }


def test_statistics_of_two_ranks_are_those_of_all_their_tokens():
    """Expected values by numpy on the concatenation. The quick test of several ranks that always runs."""
    lengths = [[3, 0, 5], [1]]  # response tokens of each episode, by rank
    values, returns = episodes(lengths), episodes(lengths, seed=1)
    found = in_ranks(len(lengths), statistics, values, returns)
    x, y = flat(values), flat(returns)
    whitened = (x - x.mean()) / np.sqrt(x.var() + 1e-8)
    assert [value for one in found for value in one["whitened"]] == pytest.approx(whitened.tolist(), abs=1e-12)
    mean, square = ((1 * 0.9 * m + 2**k * m) / 1.9 for k, m in ((1, x.mean()), (2, (x**2).mean())))
    for one in found:
        assert one["mean"] == pytest.approx(x.mean(), abs=1e-12)
        assert one["explained"] == pytest.approx(1 - (y - x).var() / y.var(), abs=1e-10)
        assert one["norm"] == pytest.approx((mean, math.sqrt(max(square - mean**2, 1e-2))), abs=1e-9)


def test_a_world_of_one():
    world = World()
    x = torch.tensor([1.0, 2.0])
    assert world.sum(x) is x
    assert (world.sum_numbers([1, 2.5]), world.gather("a"), world.broadcast("b")) == ([1, 2.5], ["a"], "b")
    assert (world.share([1, 2, 3]), world.on_main(lambda: 7), world.is_main) == ([1, 2, 3], 7, True)
    error = ValueError("x")
    with pytest.raises(ValueError, match="x") as found, world.fail_together():
        raise error
    assert found.value is error
    with pytest.raises(RuntimeError, match="NCCL"), world.contact():
        raise RuntimeError("NCCL")


@pytest.mark.parametrize(("count", "size"), [(8, 2), (7, 3), (3, 3), (1, 4), (32, 5)])
def test_shares_are_neighbours_and_even(count, size):
    parts = [World(rank, size).share(range(count)) for rank in range(size)]
    assert [item for part in parts for item in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def exchange(world: World) -> tuple:
    x = torch.tensor([world.rank + 1.0, 10.0], requires_grad=True)
    total = world.sum(x)
    first = world.on_main(lambda: f"from {world.rank}")
    told = world.broadcast({"rank": world.rank})
    return total.tolist(), total.requires_grad, x.tolist(), world.gather("abc"[world.rank]), first, told


@pytest.mark.multiprocess
def test_what_ranks_say_to_each_other():
    for rank, found in enumerate(in_ranks(3, exchange)):
        expected = ([6.0, 30.0], False, [rank + 1.0, 10.0], ["a", "b", "c"], "from 0", {"rank": 0})
        assert found == expected


def fail(world: World, errors: dict, on_main: bool = False) -> tuple[str, str, str]:
    def action() -> None:
        if world.rank in errors:
            raise errors[world.rank]

    try:
        if on_main:
            world.on_main(action)
        with world.fail_together():
            action()
    except Exception as error:
        assert world.sum_numbers([1.0]) == [world.size]  # nobody is left behind
        return type(error).__name__, str(error), str(error.__cause__)
    return "", "", ""


@pytest.mark.multiprocess
def test_an_error_of_one_rank_is_an_error_of_all_and_names_the_rank_where_not_only_rank_0_worked():
    first, second, third = in_ranks(3, fail, {1: UserError("no data")})
    assert first[:2] == third[:2] == second[:2] == ("UserError", "rank 1: no data")
    assert "UserError: no data" in first[2]
    first, second, _ = in_ranks(3, fail, {1: KeyError("x"), 2: RunStopped("NaN")})
    assert first[:2] == ("RunStopped", "rank 1: KeyError: 'x'")
    assert second[:2] == ("KeyError", "'x'")
    assert in_ranks(2, fail, {0: UserError("a"), 1: UserError("a")}) == [("UserError", "a", "None")] * 2
    assert in_ranks(2, fail, {}) == [("", "", "")] * 2
    for error, others in (
        (UserError("locked"), ("UserError", "locked")),
        (KeyError("x"), ("RunStopped", "KeyError: 'x'")),
    ):
        first, second = in_ranks(2, fail, {0: error, 1: ZeroDivisionError()}, True)  # rank 1 does nothing
        assert (first[:2], second[:2]) == ((type(error).__name__, str(error)), others)
