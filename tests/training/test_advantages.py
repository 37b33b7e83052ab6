"""What tokens are paid, and the advantages that the trainer makes of it, under settings that tests/oracles leaves out."""

import math

import pytest
import torch

from rlhf_dialog.config.estimators import ESTIMATORS
from rlhf_dialog.training import ppo
from rlhf_dialog.training.trainer import ADVANTAGES
from tests.parts.trainers import Holes, Places, make_trainer


def test_without_gae_the_advantages_are_those_of_lambda_1():
    trainer = make_trainer(use_gae=False, gamma=0.9, gae_lambda=0.5, lr=1e-2, use_valuenorm=False)
    trainer.step()
    coefficient = trainer.kl.kl_coef
    metrics, r = trainer.step(), trainer.rollout
    mask = r.response_mask
    assert r.values[mask].std() > 0
    rewards = ppo.score_rewards(r.scores, mask) + ppo.kl_penalties(r.logprobs, r.ref_logprobs, mask, coefficient)
    advantages, returns = ppo.gae(rewards, r.values, mask, 0.9, 1.0)
    torch.testing.assert_close(r.rewards, rewards)
    torch.testing.assert_close(r.returns, returns)
    expected = (advantages[mask] - advantages[mask].mean()) / advantages[mask].std(correction=0)
    torch.testing.assert_close(r.advantages[mask], expected, rtol=1e-4, atol=1e-4)
    explained = 1 - (returns - r.values)[mask].var() / returns[mask].var()
    assert metrics["ppo/explained_variance"] == pytest.approx(explained.item(), rel=1e-3)


def test_penalties_of_k3_and_whitened_rewards_reach_the_advantages():
    keys = {"kl_estimator": "k3", "ref_seed": 3, "ref_model": "another", "kl_coef": 0.3, "use_valuenorm": False}
    trainer = make_trainer(**keys, whiten_rewards=True, use_adv_normalize=False)
    metrics, r = trainer.step(), trainer.rollout
    mask, paid = r.response_mask, ppo.score_rewards(r.scores, r.response_mask)
    log_r = r.ref_logprobs - r.logprobs
    plain = (paid - 0.3 * (log_r.exp() - 1 - log_r))[mask]
    expected = (plain - plain.mean()) / plain.std(correction=0) + plain.mean()
    torch.testing.assert_close(r.rewards[mask], expected, rtol=1e-4, atol=1e-4)
    advantages, returns = ppo.gae(r.rewards, r.values, mask, 0.99, 0.95)
    torch.testing.assert_close((r.advantages, r.returns), (advantages, returns))
    assert metrics["objective/kl"] == pytest.approx(-log_r[mask].mean().item(), rel=1e-4)  # k1, as the target


def test_normalised_values_are_undone_before_gae():
    trainer = make_trainer(Places(20.0), lr=1e-2, use_adv_normalize=False)
    trainer.step()
    mean, deviation = trainer.value_norm.mean, trainer.value_norm.deviation
    first = trainer.rollout
    assert mean == pytest.approx(first.returns[first.response_mask].mean().item(), rel=1e-3)
    metrics, r = trainer.step(), trainer.rollout
    values = r.values * deviation + mean
    advantages, returns = ppo.gae(r.rewards, values, r.response_mask, 0.99, 0.95)
    torch.testing.assert_close(r.advantages, advantages, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(r.returns, returns, rtol=1e-4, atol=1e-4)
    assert metrics["ppo/value_loss"] < 10  # of normalised targets; the scores reach 50


def test_advantages_are_whitened_unless_it_is_switched_off():
    keys = {"num_responses_per_prompt": 3, "advantage_estimator": "rloo"}
    for whitens in (False, True):
        trainer = make_trainer(**keys, use_adv_normalize=whitens)
        metrics, r = trainer.step(), trainer.rollout
        assert math.isnan(metrics["ppo/value_loss"])
        assert math.isnan(metrics["ppo/explained_variance"])
        assert (r.advantages[r.response_mask].std(correction=0).item() == pytest.approx(1, rel=1e-4)) is whitens


def test_groups_without_spread_are_counted():
    """Two prompts with four responses; the first four have equal scores."""
    trainer = make_trainer(Holes(range(4), 1.0), advantage_estimator="grpo", rollout_batch_size=8)
    assert trainer.step()["ppo/flat_groups"] == 1
    assert "ppo/flat_groups" not in make_trainer().step()


def test_penalties_alone_are_not_blown_up_to_full_size(caplog):
    """With equal scores everywhere the advantages are KL noise; whitened, they would have a deviation of 1."""
    keys = {"advantage_estimator": "grpo", "kl_coef": 0.01, "ref_seed": 3, "ref_model": "another"}
    trainer = make_trainer(Holes(range(64), 0.5), rollout_batch_size=8, **keys)
    assert trainer.step()["ppo/flat_groups"] == 2
    assert 0 < trainer.rollout.advantages.abs().max() < 0.05
    assert "iteration 1: the 4 responses to each prompt have equal scores, for all 2 prompts" in caplog.text


def test_each_estimator_of_the_configuration_has_its_function():
    assert {name: function.__name__ for name, function in ADVANTAGES.items()} == {
        name: f"{name}_advantages" for name in ESTIMATORS
    }
