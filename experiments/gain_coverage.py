"""How far the gain that a run shows is from the true one, and how often its 95 % interval holds it, on games with a known gain.

A reply is a row of coins. The reference throws heads with probability 1/2, the policy with another, whose logit grows from one
iteration to the next, as in training. Rollouts go through `gain_metrics` and `recent_gain`, as a run's do.

    python -m experiments.gain_coverage --runs 2000
"""

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_dialog.distributed.world import World
from rlhf_dialog.evaluation.gain import NUM_ITERATIONS, REFERENCE, recent_gain
from rlhf_dialog.rewards.scoring import Scores
from rlhf_dialog.training.iteration_metrics import gain_metrics

COINS = 20
FROM = 0.8  # logit of the first iteration, as a share of the last one's: the KL grows by half
DISTANCES = (0.2, 0.4, 0.6, 0.8, 1.0)  # nats per reply, mean of the ten iterations
GROUP_SIZES = {"rloo": 4, "gae": 1}  # replies to a prompt
GAMES: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {  # number of heads -> reward
    "share of heads": lambda heads: heads / COINS,
    "at least 14 heads": lambda heads: (heads >= 14) * 1.0,  # of the reference 6 %
}


@dataclass
class Throws:
    """What `gain_metrics` reads of a rollout, of B replies of T coins."""

    paid: Tensor  # (B,)
    logprobs: Tensor  # (B, T)
    ref_logprobs: Tensor  # (B, T)
    num_dropped, kl_full, is_sampled, sampled_logprobs = 0, None, True, None

    def __post_init__(self) -> None:
        self.response_mask = torch.ones_like(self.logprobs, dtype=torch.bool)
        self.reward_scores = Scores(self.paid.tolist(), parts={})

    def __len__(self) -> int:
        return len(self.paid)


def kl_of(logit: float) -> float:
    """The KL of a reply, in nats, whose coins have this logit."""
    heads = 1 / (1 + math.exp(-logit))
    return COINS * (math.log(2) + heads * math.log(heads) + (1 - heads) * math.log1p(-heads))


def logits_at(distance: float, start: float = FROM) -> NDArray[Any]:
    """The logit of each iteration, whose mean KL is `distance`."""
    shares = np.linspace(start, 1, NUM_ITERATIONS)
    low, high = 0.0, 6.0
    for _ in range(60):
        middle = (low + high) / 2
        near = np.mean([kl_of(middle * share) for share in shares]) < distance
        low, high = (middle, high) if near else (low, middle)
    return low * shares


def mean_reward(reward: Callable[[NDArray[Any]], NDArray[Any]], logit: float) -> float:
    counts = np.arange(COINS + 1)
    ways = np.array([math.comb(COINS, count) for count in counts])
    return float((ways * np.exp(counts * logit - COINS * np.logaddexp(0, logit)) * reward(counts)).sum())


def throw(rng: np.random.Generator, game: str, logit: float, num_replies: int) -> Throws:
    """A rollout of replies whose coins have this logit."""
    heads = rng.random((num_replies, COINS)) < 1 / (1 + math.exp(-logit))
    logprobs = torch.from_numpy(np.where(heads, logit, 0.0) - np.logaddexp(0, logit)).float()
    paid = torch.from_numpy(GAMES[game](heads.sum(axis=1))).float()
    return Throws(paid, logprobs, torch.full_like(logprobs, -math.log(2)))


@dataclass(frozen=True)
class Coverage:
    """Of several runs: the bias as a share of the true gain, the share of intervals that hold it, and both of those shown."""

    bias: float
    coverage: float
    shown: float  # the share of the runs in which the gain is shown
    bias_shown: float
    coverage_shown: float


def measure(
    game: str, distance: float, num_replies: int, group_size: int, num_runs: int, start: float = FROM
) -> Coverage:
    """Simulate runs of ten iterations. Those that are not shown count in `bias` and `coverage` as if there were no gate."""
    rng, world, logits = np.random.default_rng(0), World(), logits_at(distance, start)
    truth = float(np.mean([mean_reward(GAMES[game], logit) for logit in logits])) - mean_reward(GAMES[game], 0.0)
    gains, held, shown = np.zeros(num_runs), np.zeros(num_runs, dtype=bool), np.zeros(num_runs, dtype=bool)
    before: dict[str, Any] = {
        "iteration": 1,
        "objective/score": 0.0,
        "objective/score_se": 0.0,
        "episodes": num_replies,
    }
    for run in range(num_runs):
        rows = [before]
        for i, logit in enumerate(logits, 2):
            rollout: Any = throw(rng, game, logit, num_replies)
            rows.append({"iteration": i, "episodes": i * num_replies, **gain_metrics(rollout, group_size, world)})
        found = recent_gain(rows, group_size)
        shown[run] = found is not None and found.over == REFERENCE
        if not shown[run]:
            found = recent_gain([before, *({**row, "gain_sums/kl": 0.0} for row in rows[1:])], group_size)
        assert found is not None
        gains[run], held[run] = found.mean, found.low <= truth <= found.high
    some = shown if shown.any() else np.ones(num_runs, dtype=bool)
    biases = (float(part.mean()) / truth - 1 for part in (gains, gains[some]))
    bias, bias_shown = biases
    return Coverage(bias, float(held.mean()), float(shown.mean()), bias_shown, float(held[some].mean()))


def table(num_runs: int, start: float) -> Iterator[str]:
    """The lines of the table."""
    yield "| game | | replies | nats a reply | bias | coverage | shown | bias of shown | coverage of shown |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for game in GAMES:
        for estimator, size in GROUP_SIZES.items():
            for num_replies in (64, 256):
                for distance in DISTANCES:
                    x = measure(game, distance, num_replies, size, num_runs, start)
                    yield (
                        f"| {game} | {estimator} | {num_replies} | {distance} | {x.bias:+.1%} | {x.coverage:.3f} | "
                        f"{x.shown:.2f} | {x.bias_shown:+.1%} | {x.coverage_shown:.3f} |"
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="runs of ten iterations for each line")
    parser.add_argument(
        "--start", type=float, default=FROM, help="logit of the first iteration, as a share of the last"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    for line in table(options.runs, options.start):
        print(line, flush=True)


if __name__ == "__main__":
    main()
