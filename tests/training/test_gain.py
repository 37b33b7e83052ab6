"""The estimate of what the policy has gained over its reference, against what enumeration and simulation say."""

import itertools
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf_dialog.distributed.world import World
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.training.iteration_metrics import episode_gains, gain_metrics, is_near, means_of_prompts
from tests.parts.trainers import collect_next, make_trainer

T_63 = 1.9983  # Student's t with 63 degrees of freedom, 97.5 %; from a table
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
        weights = torch.tensor(
            [probability(REFERENCE, reply) / probability(POLICY, reply) for reply in pair], dtype=torch.float64
        )
        gains = episode_gains(rewards, weights, group_size, rewards.sum(dim=1), 2)
        found += math.prod(probability(POLICY, reply) for reply in pair) * gains.mean().item()
    assert found == pytest.approx(expected(POLICY) - expected(REFERENCE), abs=1e-6)


def test_the_gain_of_a_trainer_is_that_of_plain_loops():
    trainer = make_trainer(
        Letters(),
        ref_seed=1,
        double=True,
        advantage_estimator="rloo",
        num_responses_per_prompt=3,
        rollout_batch_size=12,
    )
    rollout = collect_next(trainer)
    found = gain_metrics(rollout, 3, World())
    scores = [pay(dialogue.response) for dialogue in rollout.dialogues]
    of_prompts = []
    for first in range(0, 12, 3):
        gains = []
        for i in range(first, first + 3):
            tokens = zip(
                rollout.ref_logprobs[i].tolist(),
                rollout.logprobs[i].tolist(),
                rollout.response_mask[i].tolist(),
                strict=True,
            )
            weight = math.exp(sum(reference - policy for reference, policy, is_response in tokens if is_response))
            baseline = sum(scores[j] for j in range(first, first + 3) if j != i) / 2
            gains.append((scores[i] - baseline) * (1 - weight))
        of_prompts.append(sum(gains) / 3)
    assert found["objective/gain"] == pytest.approx(sum(of_prompts) / 4, abs=1e-6)
    assert found["reward/letters_gain"] == pytest.approx(sum(of_prompts) / 4, abs=1e-6)
    assert found["objective/gain_se"] == pytest.approx(statistics.stdev(of_prompts) / 2, abs=1e-6)
    means = [sum(scores[first : first + 3]) / 3 for first in range(0, 12, 3)]
    assert found["objective/score_se"] == pytest.approx(statistics.stdev(means) / 2, abs=1e-6)


def test_more_padding_changes_nothing():
    rollout = collect_next(make_trainer(Letters(), ref_seed=1, double=True))
    pad = torch.nn.functional.pad
    columns = {name: pad(getattr(rollout, name), (0, 3), value=7.0) for name in ("logprobs", "ref_logprobs")}
    tokens = replace(
        rollout.tokens,
        response_ids=pad(rollout.tokens.response_ids, (0, 3)),
        response_mask=pad(rollout.tokens.response_mask, (0, 3)),
    )
    assert gain_metrics(replace(rollout, tokens=tokens, **columns), 1, World()) == gain_metrics(rollout, 1, World())


def test_the_first_iteration_has_gained_nothing_and_later_ones_say_how_much():
    trainer = make_trainer(
        Letters(), double=True, lr=0.01, advantage_estimator="rloo", num_responses_per_prompt=4, rollout_batch_size=32
    )
    first, second = trainer.step(), trainer.step()
    assert first["objective/gain"] == pytest.approx(0.0, abs=1e-9)
    assert second["objective/gain"] != 0.0
    assert second["objective/gain_se"] > 0


def test_the_size_of_microbatches_changes_nothing():
    whole, parts = (
        gain_metrics(
            collect_next(make_trainer(Letters(), ref_seed=1, double=True, per_device_microbatch_size=size)), 1, World()
        )
        for size in (6, 1)
    )
    assert whole["objective/gain"] == pytest.approx(parts["objective/gain"], abs=1e-9)
    assert whole["objective/gain"] != 0.0


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


def test_of_simulated_intervals_at_least_92_in_100_contain_the_gain():
    """64 prompts with four replies each at about .2 nats, 2,000 rollouts: Student's t with 63 degrees of freedom."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(64, 8))
    policy = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    moved = logits + 0.78 * rng.normal(size=(64, 8))
    reference = np.exp(moved) / np.exp(moved).sum(axis=1, keepdims=True)
    assert 0.15 < (policy * np.log(policy / reference)).sum(axis=1).mean() < 0.25
    rewards = rng.normal(size=(64, 8)) + rng.normal(size=(64, 1))
    truth = ((policy - reference) * rewards).sum(axis=1).mean()
    covered, rollouts = 0, 2000
    for _ in range(rollouts):
        drawn = (policy.cumsum(axis=1)[:, None] < rng.random((64, 4, 1))).sum(axis=2).clip(max=7)
        paid, weights = (
            torch.tensor(np.take_along_axis(x, drawn, axis=1).ravel()) for x in (rewards, reference / policy)
        )
        gains = episode_gains(paid[None], weights, 4, paid[None].sum(dim=1), 256)
        (mean,), (error,) = means_of_prompts(gains.view(1, 64, 4).mean(dim=2), World())
        covered += abs(mean - truth) <= T_63 * error
    assert covered / rollouts >= 0.92
