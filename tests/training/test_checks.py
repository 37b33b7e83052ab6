"""The checks that every run makes: the ratio and the KL of the start, and models whose numbers are not finite."""

import math

import pytest
import torch

from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.training.checks import Noise, check_ratio, check_start, combine_rounding, difference_statistics
from tests.parts.trainers import Places, change_predictions, make_trainer, parameters


def noisy(size):
    def add_noise(predictions, _):
        x = predictions.logprobs
        return predictions._replace(logprobs=x + size * torch.sin(torch.arange(x.numel())).view_as(x))

    return add_noise


def test_ratio_check_stops_in_every_iteration(monkeypatch):
    trainer = make_trainer()
    trainer.step()
    before = parameters(trainer.models.policy)
    change_predictions(monkeypatch, noisy(1e-3))
    with pytest.raises(RunStopped, match=r"iteration 2: the ratio .* is not 1 on the first minibatch"):
        trainer.step()
    assert all(torch.equal(p, before[name]) for name, p in trainer.models.policy.named_parameters())
    assert RunStopped.exit_code == 3


def test_ratio_check_sees_every_microbatch_of_the_first_minibatch(monkeypatch):
    calls = []

    def last_is_wrong(*args):
        calls.append(1)
        return noisy(1e-2 if len(calls) == 6 else 0)(*args)

    change_predictions(monkeypatch, last_is_wrong)
    with pytest.raises(RunStopped, match="ratio"):
        make_trainer(num_mini_batch=1, per_device_microbatch_size=1).step()
    assert len(calls) == 6


def test_kl_check_stops_a_run_that_does_not_start_at_its_reference():
    with pytest.raises(RunStopped, match=r"starts as its own reference, but their log-probabilities differ"):
        make_trainer(ref_seed=1).step()
    with pytest.raises(RunStopped, match=r"starts as its own reference"):
        make_trainer(ref_seed=1, ref_model="tiny").step()  # named, and the same as model_path
    metrics = make_trainer(ref_seed=1, ref_model="another").step()
    assert abs(metrics["objective/kl"]) > 1e-3
    assert metrics["objective/kl_initial"] == metrics["objective/kl"]


@pytest.mark.parametrize(("shift", "fine"), [(1e-6, True), (-1e-6, True), (1e-4, False), (-1e-4, False)])
def test_kl_check_has_a_tolerance(monkeypatch, shift, fine):
    trainer = make_trainer()

    reference = trainer.models.ref_policy
    predict = reference.predict

    def shifted(*args, **options):
        predictions = predict(*args, **options)
        return predictions._replace(logprobs=predictions.logprobs - shift)

    monkeypatch.setattr(reference, "predict", shifted)
    if fine:
        assert trainer.step()["objective/kl"] == pytest.approx(shift, abs=5e-7)
    else:
        with pytest.raises(RunStopped, match="starts as its own reference"):
            trainer.step()


def test_kl_check_is_of_the_first_iteration_only():
    trainer = make_trainer(lr=1e-2)
    first, second = trainer.step(), trainer.step()
    assert abs(first["objective/kl"]) < 1e-5
    assert abs(second["objective/kl"]) > 1e-5
    assert "objective/kl_initial" not in second


def test_dropout_left_on_is_noticed():
    trainer = make_trainer()
    trainer.models.policy.train()
    with pytest.raises(RunStopped, match="reference"):
        trainer.step()
    trainer = make_trainer(ref_model="another")
    trainer.models.policy.train()
    with pytest.raises(RunStopped, match="ratio"):
        trainer.step()


def test_weights_that_are_no_numbers_stop_the_run():
    trainer = make_trainer()
    torch.nn.init.constant_(trainer.models.ref_policy.lm.transformer.ln_f.weight, math.nan)
    with pytest.raises(RunStopped, match=r"iteration 1: the reference gives NaN or inf for 6 of 6 responses"):
        trainer.step()


def test_a_loss_that_is_not_finite_stops_before_the_optimizer():
    trainer = make_trainer(Places(1e30), use_huber_loss=False, use_valuenorm=False)
    before = parameters(trainer.models.policy)
    with pytest.raises(RunStopped, match=r"iteration 1: a number of the update is not finite \(.*ppo/value_loss inf"):
        trainer.step()
    assert all(torch.equal(p, before[name]) for name, p in trainer.models.policy.named_parameters())


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_weights_of_the_policy_that_are_no_numbers_stop_before_a_token_is_drawn(number):
    trainer = make_trainer()
    trainer.step()
    torch.nn.init.constant_(trainer.models.policy.lm.transformer.ln_f.bias, number)
    with pytest.raises(RunStopped, match=r"predictions are not finite \(NaN or inf\)"):
        trainer.step()


def test_weights_of_the_critic_that_are_no_numbers_stop_before_the_update():
    trainer = make_trainer(use_share_model=False)
    torch.nn.init.constant_(trainer.models.critic.value_head.weight, math.nan)
    before = parameters(trainer.models.policy)
    with pytest.raises(
        RunStopped, match=r"iteration 1: the critic gives NaN or inf for 6 of 6 responses .*prompt \d+,"
    ):
        trainer.step()
    assert all(torch.equal(p, before[name]) for name, p in trainer.models.policy.named_parameters())


def test_the_ratio_is_checked_on_the_first_minibatch_that_counts(monkeypatch):
    trainer = make_trainer(num_mini_batch=3, ppo_epoch=1)
    calls = []

    def bad_then_wrong(*args):
        calls.append(1)
        return noisy(math.nan if len(calls) == 1 else 1e-2)(*args)

    change_predictions(monkeypatch, bad_then_wrong)
    with pytest.raises(RunStopped, match="ratio"):
        trainer.step()
    assert len(calls) == 2


def test_a_fresh_run_in_16_bit_starts_from_its_reference():
    metrics = make_trainer(use_amp=True).step()
    assert 0 <= abs(metrics["objective/kl"]) < 1e-3
    with pytest.raises(RunStopped, match="starts as its own reference, but their log-probabilities differ by"):
        make_trainer(use_amp=True, ref_seed=1).step()


def test_the_checks_in_16_bit_are_multiples_of_the_measured_noise(caplog):
    """Warned above 4 times, once; stopped above 20 times, by the mean or by the largest difference."""
    noise = Noise(mean=0.01, largest=0.1, num_bits=16)
    check_ratio(0.39, 0.039, 1, noise)
    check_start(0.39, 0.039, noise)
    assert not caplog.records
    for largest, mean in ((0.1, 0.041), (0.41, 0.01), (1.99, 0.199)):
        check_ratio(largest, mean, 1, noise)
        check_start(largest, mean, noise)
    (warned,) = caplog.messages
    assert "by 0.041 nats in the mean and 0.1 at most, 4.1 times the rounding noise" in warned
    assert "(0.01 and 0.1); the run goes on, and stops above 20 times. Run it once with precision: fp32" in warned
    for largest, mean in ((0.1, 0.201), (2.01, 0.01)):
        with pytest.raises(RunStopped, match=r"iteration 3: the ratio .* 20\.1 times .*; up to 20 times are allowed"):
            check_ratio(largest, mean, 3, noise)
        with pytest.raises(RunStopped, match=r"starts as its own reference.* 20\.1 times"):
            check_start(largest, mean, noise)
    check_ratio(math.nan, math.nan, 3, noise)  # the step is skipped


@pytest.mark.parametrize("temperature", [0.01, 1.0])
def test_the_checks_allow_for_rounding_that_a_low_temperature_multiplies(temperature):
    """At T = .01 a rounding error of 1e-6 in a logit is 1e-4 in a log-probability: a healthy run goes on."""
    trainer = make_trainer(temperature=temperature)
    metrics = trainer.step()
    noise = trainer.noise
    assert abs(metrics["objective/kl"]) < 1e-5 / temperature
    assert 1e-6 / temperature <= noise.largest < 1e-4 / temperature
    check_ratio(3.9 * noise.largest, noise.mean, 1, noise)
    with pytest.raises(RunStopped, match=r"the ratio .* 20\.1 times the rounding noise .*; up to 20 times are allowed"):
        check_ratio(20.1 * noise.largest, noise.mean, 1, noise)
    with pytest.raises(RunStopped, match="starts as its own reference"):
        check_start(20.1 * noise.largest, noise.mean, noise)


def test_before_a_measure_the_least_noise_counts():
    """DECISIONS: at least 1e-6 nats, so that 2e-5 is the least limit."""
    check_ratio(1.9e-5, 1.9e-6, 1, Noise())
    with pytest.raises(RunStopped, match="up to 20 times are allowed"):
        check_ratio(2.1e-5, 1e-6, 1, Noise())


@pytest.mark.parametrize(
    ("temperature", "num_bits", "found", "warns"),
    [
        (1.0, 16, (0.2, 0.3), True),
        (5.0, 16, (0.2, 0.3), True),
        (0.1, 16, (0.2, 0.3), False),  # which divides the logits
        (0.01, 16, (0.2, 1.5), False),  # at least 0.015 / T
        (1.0, 32, (0.2, 3.0), False),  # rare tokens may have ten times as much
    ],
)
def test_the_noise_of_a_run_by_hand(temperature, num_bits, found, warns, caplog):
    noise = combine_rounding(torch.tensor([0.1, 0.3]), World(), temperature, num_bits)
    assert (noise.mean, noise.largest) == pytest.approx(found)
    assert (noise.num_bits, "set precision: fp32" in caplog.text) == (num_bits, warns)


def test_the_statistics_of_differences_leave_out_what_is_masked():
    mask = torch.tensor([[True, True], [True, False]])
    found = difference_statistics(torch.tensor([[1.0, -4.0], [1.0, 0.0]]), mask)
    assert {name: x.item() for name, x in found.items()} == {"largest": 4.0, "mean": 2.0, "tokens": 3.0}


def test_the_mean_of_a_few_tokens_may_be_the_largest_noise(caplog):
    """Peaked predictions have a small mean noise, which a microbatch of a single short response exceeds at one token."""
    noise = Noise(mean=0.001, largest=0.03, num_bits=16)
    for check in (check_start, lambda *sizes, tokens: check_ratio(*sizes[:2], 1, sizes[2], tokens=tokens)):
        for tokens in (0, 1, 2):
            check(0.03, 0.03, noise, tokens=tokens)
        assert not caplog.records
        with pytest.raises(RunStopped, match=r"differ by 0\.03 nats in the mean"):
            check(0.03, 0.03, noise, tokens=100)
    with pytest.raises(RunStopped, match="differ"):
        check_start(0.7, 0.7, noise, tokens=1)
