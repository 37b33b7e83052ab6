"""The estimate of what the policy has gained over its reference, against what enumeration and simulation say."""

import itertools
import math
import statistics
from dataclasses import replace

import pytest
import torch

from rlhf_dialog.distributed.world import World
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.training.iteration_metrics import episode_gains, gain_metrics, is_near
from tests.parts.trainers import collect_next, make_trainer

POLICY, REFERENCE = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])  # of three tokens, replies have two
REWARD = {
    reply: sum((token + 1) * 0.3 for token in reply) - reply[0] * reply[1]
    for reply in itertools.product(range(3), repeat=2)
}


def pay(response):
    return sum(map(ord, response)) % 7 / 7


class Letters(BaseReward):
    """A number that every letter of the response changes."""

    name = "letters"

    def __call__(self, dialogues):
        return [pay(dialogue.response) for dialogue in dialogues]


def probability(tokens, reply):
    return math.prod(tokens[token].item() for token in reply)


def expected(tokens):
    """The mean reward of replies that are drawn from these token probabilities."""
    return sum(probability(tokens, reply) * reward for reply, reward in REWARD.items())


@pytest.mark.parametrize("group_size", [1, 2])
def test_over_all_pairs_of_replies_the_estimate_is_the_difference_of_the_means(group_size):
    """Two replies, to one prompt or to two: each pair with its probability under the policy."""
    found = 0.0
    for pair in itertools.product(REWARD, repeat=2):
        rewards = torch.tensor([[REWARD[reply] for reply in pair]], dtype=torch.float64)
        weights = torch.tensor([probability(REFERENCE, reply) / probability(POLICY, reply) for reply in pair]).double()
        gains = episode_gains(rewards, weights, group_size, rewards.sum(dim=1), 2)
        found += math.prod(probability(POLICY, reply) for reply in pair) * gains.mean().item()
    assert found == pytest.approx(expected(POLICY) - expected(REFERENCE), abs=1e-6)


def test_the_gain_of_a_trainer_is_that_of_plain_loops():
    keys = {"advantage_estimator": "rloo", "num_responses_per_prompt": 3, "rollout_batch_size": 12}
    trainer = make_trainer(Letters(), ref_seed=1, double=True, **keys)
    rollout = collect_next(trainer)
    found = gain_metrics(rollout, 3, World())
    scores = [pay(dialogue.response) for dialogue in rollout.dialogues]
    of_prompts = []
    for first in range(0, 12, 3):
        gains = []
        for i in range(first, first + 3):
            columns = (rollout.ref_logprobs, rollout.logprobs, rollout.response_mask)
            tokens = zip(*(x[i].tolist() for x in columns), strict=True)
            weight = math.exp(sum(reference - policy for reference, policy, is_response in tokens if is_response))
            baseline = sum(scores[j] for j in range(first, first + 3) if j != i) / 2
            gains.append((scores[i] - baseline) * (1 - weight))
        of_prompts.append(sum(gains) / 3)
    assert found["objective/gain"] == pytest.approx(sum(of_prompts) / 4, abs=1e-6)
    assert found["reward/letters_gain"] == pytest.approx(sum(of_prompts) / 4, abs=1e-6)
    assert found["objective/gain_se"] == pytest.approx(statistics.stdev(of_prompts) / 2, abs=1e-6)
    means = [sum(scores[first : first + 3]) / 3 for first in range(0, 12, 3)]
    assert found["objective/score_se"] == pytest.approx(statistics.stdev(means) / 2, abs=1e-6)


@pytest.mark.parametrize(
    "change",
    [{"is_sampled": False}, {"kl_full": torch.zeros(6, 5)}, {"num_dropped": 1}],
    ids=lambda change: next(iter(change)),
)
def test_where_it_is_not_known_there_is_no_number(change):
    rollout = collect_next(make_trainer(Letters(), ref_seed=1, double=True))
    known, unknown = (gain_metrics(one, 1, World()) for one in (rollout, replace(rollout, **change)))
    for name in ("objective/gain", "objective/gain_se", "reward/letters_gain"):
        assert math.isfinite(known[name])
        assert math.isnan(unknown[name])


@pytest.mark.parametrize(
    ("sums", "known"),
    [
        ((8.0, 8.0, 0.0), True),
        ((8.0, 31.9, 0.0), True),  # effectively a quarter of the eight
        ((8.0, 32.1, 0.0), False),
        ((3.9, 2.0, 0.0), False),
        ((12.1, 19.0, 0.0), False),
        ((8.0, 8.0, 8.1), False),
        ((math.inf, math.inf, 0.0), False),
    ],
)
def test_a_policy_that_is_far_from_its_reference_has_no_gain(sums, known):
    assert is_near(list(sums), 8) is known
