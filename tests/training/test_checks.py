"""The checks that every run makes: the ratio and the KL of the start, numbers that are not finite, and the noise they allow."""

import math

import pytest
import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.training import checks
from rlhf_dialog.training.checks import Noise, check_ratio, check_start, combine_rounding, prompt_names, watch_kl
from rlhf_dialog.training.ppo import AdaptiveKLController
from tests.parts.trainers import Places, change_predictions, make_trainer, parameters


def noisy(size):
    def add_noise(predictions, _):
        x = predictions.logprobs
        return predictions._replace(logprobs=x + size * torch.sin(torch.arange(x.numel())).view_as(x))

    return add_noise


def stops(trainer, words):
    """The next step stops with these words, and no weight has moved."""
    before = parameters(trainer.models.policy)
    with pytest.raises(RunStopped, match=words):
        trainer.step()
    assert all(torch.equal(p, before[name]) for name, p in trainer.models.policy.named_parameters())


def test_ratio_check_stops_in_every_iteration(monkeypatch):
    trainer = make_trainer()
    trainer.step()
    change_predictions(monkeypatch, noisy(1e-3))
    stops(trainer, r"iteration 2: the ratio .* is not 1 on the first minibatch")
    assert RunStopped.exit_code == 3


@pytest.mark.parametrize(
    ("keys", "first_is_bad", "wrong"),
    [
        ({"num_mini_batch": 1, "per_device_microbatch_size": 1}, False, 6),  # the last microbatch of the first step
        ({"num_mini_batch": 3, "ppo_epoch": 1}, True, 2),  # the first step that counts
    ],
)
def test_ratio_check_sees_each_microbatch_of_the_first_minibatch_that_counts(monkeypatch, keys, first_is_bad, wrong):
    calls = []

    def change(*args):
        calls.append(1)
        if first_is_bad and len(calls) == 1:
            return noisy(math.nan)(*args)
        return noisy(1e-2 if len(calls) == wrong else 0)(*args)

    change_predictions(monkeypatch, change)
    with pytest.raises(RunStopped, match="ratio"):
        make_trainer(**keys).step()
    assert len(calls) == wrong


def test_kl_check_stops_a_run_that_does_not_start_at_its_reference():
    stops(make_trainer(ref_seed=1), r"starts as its own reference, but their log-probabilities differ by")
    stops(
        make_trainer(ref_seed=1, ref_model="tiny", use_amp=True), "starts as its own reference"
    )  # the same as model_path
    metrics = make_trainer(ref_seed=1, ref_model="another").step()
    assert abs(metrics["objective/kl"]) > 1e-3
    assert metrics["objective/kl_initial"] == metrics["objective/kl"]


@pytest.mark.parametrize(("shift", "fine"), [(1e-6, True), (-1e-4, False)])
def test_kl_check_has_a_tolerance(monkeypatch, shift, fine):
    trainer = make_trainer()
    predict = trainer.models.ref_policy.predict

    def shifted(*args, **options):
        predictions = predict(*args, **options)
        return predictions._replace(logprobs=predictions.logprobs - shift)

    monkeypatch.setattr(trainer.models.ref_policy, "predict", shifted)
    if fine:
        assert trainer.step()["objective/kl"] == pytest.approx(shift, abs=5e-7)
    else:
        stops(trainer, "starts as its own reference")


def test_kl_check_is_of_the_first_iteration_only():
    trainer = make_trainer(lr=1e-2)
    first, second = trainer.step(), trainer.step()
    assert abs(first["objective/kl"]) < 1e-5 < abs(second["objective/kl"])
    assert "objective/kl_initial" not in second
    in_16_bits = make_trainer(use_amp=True).step()
    assert abs(in_16_bits["objective/kl"]) < 1e-3


def test_dropout_left_on_is_noticed():
    for keys, words in (({}, "reference"), ({"ref_model": "another"}, "ratio")):
        trainer = make_trainer(**keys)
        trainer.models.policy.train()
        stops(trainer, words)


def test_numbers_that_are_not_finite_stop_before_a_step():
    trainer = make_trainer()
    torch.nn.init.constant_(trainer.models.ref_policy.lm.transformer.ln_f.weight, math.nan)
    stops(trainer, r"iteration 1: the reference gives NaN or inf for 6 of 6 responses")
    trainer = make_trainer(use_share_model=False)
    torch.nn.init.constant_(trainer.models.critic.value_head.weight, math.nan)
    stops(trainer, r"iteration 1: the critic gives NaN or inf for 6 of 6 responses .*prompt \d+,")
    stops(
        make_trainer(Places(1e30), use_huber_loss=False, use_valuenorm=False),
        r"iteration 1: a number of the update is not finite \(.*ppo/value_loss inf",
    )
    for number in (math.nan, math.inf):
        trainer = make_trainer()
        torch.nn.init.constant_(trainer.models.policy.lm.transformer.ln_f.bias, number)
        with pytest.raises(RunStopped, match=r"predictions are not finite \(NaN or inf\)"):
            trainer.step()


def start_of(*differences):
    """Check a start with these differences of log-probabilities, and one more that does not count."""
    x = torch.tensor([[*differences, 9.0]])
    return lambda noise: check_start(x, x < 9, noise, World())


@pytest.mark.parametrize("check", [lambda *sizes: lambda noise: check_ratio(*sizes, 3, noise), None])
def test_a_check_warns_above_4_times_the_noise_once_and_stops_above_20_times(check, caplog):
    """By the mean or by the largest difference, which 500 tokens have."""
    noise = Noise(mean=0.01, largest=0.1, num_bits=16)
    if check is None:  # of the start: the same sizes as differences
        check = lambda largest, mean, count: start_of(-largest, *[(count * mean - largest) / (count - 1)] * (count - 1))  # noqa: E731
    check(0.39, 0.039, 500)(noise)
    assert not caplog.records
    for largest, mean in ((0.1, 0.042), (0.41, 0.01), (1.99, 0.199)):
        check(largest, mean, 500)(noise)
        (warned,) = caplog.messages
    assert "4.1 times the rounding noise" in warned
    assert "precision: fp32" in warned
    for largest, mean in ((0.3, 0.205), (2.01, 0.01)):
        with pytest.raises(RunStopped, match=r" 20\.1 times"):
            check(largest, mean, 500)(noise)


def test_a_ratio_that_is_no_number_is_left_to_the_skipped_step():
    check_ratio(math.nan, math.nan, 5, 3, Noise())


def test_the_mean_of_a_few_tokens_may_be_the_largest_noise(caplog):
    """Peaked predictions have a small mean noise, which a microbatch of a single short response exceeds at one token."""
    noise = Noise(mean=0.001, largest=0.03, num_bits=16)
    for tokens in (0, 1, 2):
        check_ratio(0.03, 0.03, tokens, 1, noise)
    start_of(0.03)(noise)
    assert not caplog.records
    for check in (lambda noise: check_ratio(0.03, 0.03, 100, 1, noise), start_of(*[0.03] * 100), start_of(0.7)):
        with pytest.raises(RunStopped, match="differ"):
            check(noise)


@pytest.mark.parametrize("temperature", [0.01, 1.0])
def test_the_checks_allow_for_rounding_that_a_low_temperature_multiplies(temperature):
    """At T = .01 a rounding error of 1e-6 in a logit is 1e-4 in a log-probability: a healthy run goes on."""
    trainer = make_trainer(temperature=temperature)
    metrics, noise = trainer.step(), trainer.noise
    assert abs(metrics["objective/kl"]) < 1e-5 / temperature
    assert 1e-6 / temperature <= noise.largest < 1e-4 / temperature


def test_before_a_measure_the_least_noise_counts():
    """It is 1e-6 nats, so that 2e-5 is the least limit."""
    check_ratio(1.9e-5, 1.9e-6, 1e9, 1, Noise())
    with pytest.raises(RunStopped, match="up to 20 times are allowed"):
        check_ratio(2.1e-5, 1e-6, 1e9, 1, Noise())


@pytest.mark.parametrize(
    ("differences", "temperature", "num_bits", "found", "warns"),
    [
        ([0.1, 0.3], 1.0, 16, (0.2, 0.3), True),
        ([0.1, 0.3], 5.0, 16, (0.2, 0.3), True),
        ([0.1, 0.3], 0.1, 16, (0.2, 0.3), False),  # which divides the logits
        ([0.1, 0.3], 0.01, 16, (0.2, 1.5), False),  # at least 0.015 / T
        ([0.1, 0.3], 1.0, 32, (0.2, 3.0), False),  # rare tokens may have ten times as much
        ([0.0] * 7, 1.0, 16, (5e-4, 0.015), False),  # kernels that round equally
        ([], 0.5, 16, (1e-3, 0.03), False),
        ([0.0, 0.0, 3e-5], 1.0, 32, (1e-5, 3e-4), False),
        ([1e-9, 1e-9, 3e-5], 1.0, 32, (1e-5, 3e-4), False),
        ([0.0] * 99 + [3e-5], 1.0, 32, (3e-6, 3e-4), False),  # the mean is at least a tenth of the largest
    ],
)
def test_the_noise_of_a_run_by_hand(differences, temperature, num_bits, found, warns, caplog):
    noise = combine_rounding(torch.tensor(differences), World(), temperature, num_bits)
    assert (noise.mean, noise.largest) == pytest.approx(found, rel=1e-4)
    assert (noise.num_bits, "set precision: fp32" in caplog.text) == (num_bits, warns)


def test_the_noise_is_that_of_all_ranks():
    """The mean counts tokens; each rank hears the same."""

    class Two(World):
        def gather(self, value):
            return [value, 0.5]

        def sum_numbers(self, numbers):
            return [numbers[0] + 0.9, numbers[1] + 7]

    found = combine_rounding(torch.tensor([0.1, 0.2, 0.3]), Two(), 1.0, 16)
    assert (found.mean, found.largest) == (pytest.approx(1.5 / 10), 0.5)


def test_the_statistics_of_differences_leave_out_what_is_masked():
    mask = torch.tensor([[True, True], [True, False]])
    found = checks.difference_statistics(torch.tensor([[1.0, -4.0], [1.0, 0.0]]), mask)
    assert {name: x.item() for name, x in found.items()} == {"largest": 4.0, "mean": 2.0, "tokens": 3.0}


def test_names_of_prompts():
    many = [Dialogue(["a"], meta={"split": "train", "index": i // 2}) for i in range(40)]
    assert prompt_names(many[:4]) == "train 0, train 1"
    assert prompt_names(many).endswith(", train 15 and 4 more")
    assert prompt_names([Dialogue(["a"])]) == "prompt ?"


# -- a KL that does not come down


def test_a_kl_that_stays_above_its_target_is_reported_at_16_32_64_iterations(caplog):
    """Where the coefficient grew, or is at its bound; a fixed one has no target."""
    keys = {"kl_target": 1e-9, "kl_rate": 1.0, "kl_clip": 0.05, "kl_coef_max": 5.0}
    for start, words in ((0.2, "grew 2.2-fold, now 0.437: lower lr"), (4.9, "now 5, which is its bound kl_coef_max")):
        controller, reported = AdaptiveKLController(start, **keys), []
        for iteration in range(40):
            controller.update(0.5)
            caplog.clear()
            watch_kl(controller, 0.5, 5)
            reported += [(iteration + 1, text) for text in caplog.messages]
        assert [iteration for iteration, _ in reported] == [16, 32]
        assert words in reported[0][1]
    fixed = AdaptiveKLController(5.0, **keys | {"kl_rate": 0.0})
    caplog.clear()
    for _ in range(20):
        fixed.update(0.5)
        watch_kl(fixed, 0.5, 5)
    assert not caplog.records


def test_a_start_far_from_the_reference_is_reported(caplog):
    for iteration, kl, is_reported in ((1, 1.0, False), (2, 1.2, False), (1, 1.2, True)):
        watch_kl(AdaptiveKLController(), kl, iteration)
        assert ("starts 1.20 nats per token away" in caplog.text) is is_reported
