"""The mathematics of PPO, against hand computations and slow implementations on lists that delete masked tokens."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor

from rlhf_dialog.training import ppo

NAN, INF = math.nan, math.inf
masks = st.integers(1, 4).flatmap(
    lambda rows: st.integers(1, 9).flatmap(
        lambda width: st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=rows, max_size=rows)
    )
)
seeds = st.integers(0, 10_000)


def numbers(seed, mask, count):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(len(mask), len(mask[0]), generator=generator, dtype=torch.float64) for _ in range(count)]


def spoil(x, mask, values=(NAN, INF, -INF)):
    """`x` with nan and inf in turn where the mask is False."""
    spoilt = x.clone()
    for i, (b, t) in enumerate((~mask).nonzero().tolist()):
        spoilt[b, t] = values[i % len(values)]
    return spoilt


def test_masked_and_masked_mean():
    x, mask = tensor([[1.0, NAN, 3.0], [INF, 5.0, -INF]]), tensor([[True, False, True], [False, True, False]])
    assert ppo.apply_mask(x, mask).tolist() == [[1, 0, 3], [0, 5, 0]]
    assert ppo.masked_mean(x, mask).item() == 3
    assert ppo.masked_mean(x, torch.zeros_like(mask)).item() == 0


def test_explained_variance_by_hand():
    """Returns 1 3 5 have the variance 8/3; the errors -1 0 -2 of the values 2 3 7 have 2/3, and those of a constant 8/3."""
    mask = tensor([[True, False, True], [True, False, False]])
    returns = tensor([[1.0, NAN, 3.0], [5.0, INF, NAN]])
    values = tensor([[2.0, 7.0, 3.0], [7.0, NAN, INF]])
    assert ppo.explained_variance(values, returns, mask).item() == pytest.approx(1 - 1 / 4)
    assert ppo.explained_variance(torch.full((2, 3), 9.0), returns, mask).item() == pytest.approx(0)


def test_gae_and_returns_with_a_discount_and_a_reward_in_a_hole_by_hand():
    """The hole's 2 belongs to the first token: deltas 1 + 2 + 8 / 2 - 3 = 4 and 4 - 8 = -4, with gamma and lambda 1/2."""
    mask = tensor([[True, False, True]])
    rewards, values = tensor([[1.0, 2.0, 4.0]]), tensor([[3.0, NAN, 8.0]])
    advantages, returns = ppo.gae(rewards, values, mask, 0.5, 0.5)
    assert (advantages.tolist(), returns.tolist()) == ([[3, 0, -4]], [[6, 0, 4]])
    paid, penalties = rewards + 1, torch.full((1, 3), -1.0)  # REINFORCE++ adds them up again: 1 + 2 + 4 / 2, and 4
    for found in ppo.reinforce_pp_advantages(paid, penalties, values, mask, ppo.Credit(gamma=0.5)):
        assert found.tolist() == [[5, 0, 4]]


def test_a_reward_that_is_not_finite_behind_the_mask_is_nothing_and_in_it_is_seen():
    mask = tensor([[True, False, True]])
    advantages, returns = ppo.gae(tensor([[1.0, NAN, 2.0]]), torch.zeros(1, 3), mask, 1.0, 1.0)
    assert advantages.tolist() == returns.tolist() == [[3, 0, 2]]
    advantages, _ = ppo.gae(tensor([[1.0, 0.0, NAN]]), torch.zeros(1, 3), mask, 1.0, 1.0)
    assert advantages[0, 2].isnan()


def test_scores_and_penalties_by_hand():
    """-kl_coef * (logprob - ref_logprob) on True positions; the score on the last True one, padding and holes or not."""
    mask = tensor([[True, True, True, True], [True, False, True, False], [False, True, False, False], [False] * 4])
    logprobs = tensor([[-1.0, -2.0, -3.0, -4.0], [-1.0, NAN, -1.0, -INF], [INF, -2.0, 7.0, 7.0], [NAN] * 4])
    ref_logprobs = tensor([[-2.0, -2.0, -1.0, -4.5], [-3.0, 1.0, -0.5, -INF], [INF, -1.0, NAN, 7.0], [NAN] * 4])
    paid = ppo.score_rewards(tensor([10.0, 20.0, 30.0, 40.0]), mask)
    rewards = paid + ppo.kl_penalties(logprobs, ref_logprobs, mask, kl_coef=0.1)
    expected = [[-0.1, 0, 0.2, -0.05 + 10], [-0.2, 0, 0.05 + 20, 0], [0, 0.1 + 30, 0, 0], [0, 0, 0, 0]]
    torch.testing.assert_close(rewards, tensor(expected))


def test_whiten_by_hand():
    """Mean 4 and population variance 5; without a shift the mean stays."""
    x, mask = tensor([[1.0, NAN, 3.0], [5.0, INF, 7.0]]), tensor([[True, False, True], [True, False, True]])
    expected = tensor([[-3.0, 0.0, -1.0], [1.0, 0.0, 3.0]]) / math.sqrt(5)
    torch.testing.assert_close(ppo.whiten(x, mask), expected)
    torch.testing.assert_close(ppo.whiten(x, mask, shift_mean=False), torch.where(mask, expected + 4, 0.0))
    assert ppo.whiten(tensor([[2.0, 2.0]]), tensor([[True, True]])).tolist() == [[0, 0]]


def test_penalties_of_the_two_estimators_by_hand():
    """The policy gives 1/2, 1/4 and 1/2 to its tokens, the reference 1/4, 1/2 and 1/2; the last token does not count."""
    ours, theirs = tensor([[0.5, 0.25, 0.5, NAN]]).log(), tensor([[0.25, 0.5, 0.5, 1.0]]).log()
    mask, ln2 = tensor([[True, True, True, False]]), math.log(2)
    k1, k3 = (ppo.kl_penalties(ours, theirs, mask, 0.1, name) for name in ("k1", "k3"))
    torch.testing.assert_close(k1, -0.1 * tensor([[ln2, -ln2, 0.0, 0.0]]))
    torch.testing.assert_close(k3, -0.1 * tensor([[0.5 - 1 + ln2, 2 - 1 - ln2, 0.0, 0.0]]))
    assert torch.equal(ppo.kl_penalties(ours, theirs, mask, 0.1), k1)


def clip_loss(new, old, advantages, mask, dual=None):
    clip = ppo.Clip(0.2, 0.2, dual)
    unread = torch.full_like(old, NAN)
    return ppo.clip_loss(ppo.LossInputs(new, old, unread, advantages, torch.ones_like(old), mask, mask.sum(), clip))


@pytest.mark.parametrize(
    ("advantage", "ratio", "dual", "loss", "clipped"),
    [
        (2.0, 1.0, None, -2.0, 0),
        (2.0, 1.1, None, -2.2, 0),
        (2.0, 1.5, None, -2.4, 1),  # gains stop at 1 + clip
        (2.0, 0.5, None, -1.0, 0),  # the pessimistic side is never clipped
        (-2.0, 1.5, None, 3.0, 0),
        (-2.0, 0.5, None, 1.6, 1),  # gains stop at 1 - clip
        (-2.0, 0.9, None, 1.8, 0),
        (-2.0, 5.0, None, 10.0, 0),
        (-2.0, 5.0, 3.0, 6.0, 0),  # dual clip: at most c |A|
        (-2.0, 2.0, 3.0, 4.0, 0),
        (-2.0, 0.5, 3.0, 1.6, 1),
        (2.0, 5.0, 3.0, -2.4, 1),  # a positive advantage has no dual clip
        (2.0, 0.1, 3.0, -0.2, 0),
    ],
)
def test_policy_loss_of_one_token_by_hand(advantage, ratio, dual, loss, clipped):
    old = tensor([[-1.3, NAN]], dtype=torch.float64)
    new = tensor([[-1.3 + math.log(ratio), 4.0]], dtype=torch.float64)
    found, sums = clip_loss(new, old, tensor([[advantage, 9.0]]).double(), tensor([[True, False]]), dual)
    assert found.item() == pytest.approx(loss)
    assert sums["clip_fraction"].item() == clipped


@given(masks.filter(lambda mask: any(map(any, mask))), seeds, st.sampled_from([None, 1.5]))
def test_policy_loss_and_its_gradient_with_bad_numbers_behind_the_mask(mask, seed, dual):
    new, old, advantages = numbers(seed, mask, 3)
    counts = tensor(mask)
    total, clipped, slope = 0.0, 0, torch.zeros_like(new)
    for b, t in counts.nonzero().tolist():
        a, ratio = advantages[b, t].item(), math.exp(new[b, t].item() - old[b, t].item())
        surrogate = min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
        flat = surrogate != ratio * a
        clipped += flat
        if dual and a < 0 and surrogate < dual * a:
            surrogate, flat = dual * a, True
        total -= surrogate
        slope[b, t] = 0 if flat else -ratio * a
    leaf = spoil(new, counts).requires_grad_()
    bad_old, bad_advantages = spoil(old, counts, (INF, NAN)), spoil(advantages, counts, (NAN, INF))
    loss, sums = clip_loss(leaf, bad_old, bad_advantages, counts, dual)
    loss.backward()
    count = counts.sum().item()
    assert loss.item() == pytest.approx(total / count, abs=1e-9)
    assert sums["clip_fraction"].item() == pytest.approx(clipped / count)
    torch.testing.assert_close(leaf.grad, slope / count)


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "huber", "loss"),
    [
        (3.0, 0.0, 1.0, None, None, 2.0),  # half of 2 squared
        (-3.0, 0.0, 1.0, None, None, 8.0),
        (1.0, 0.0, 3.0, 0.2, None, 0.5 * 2.8**2),  # clipped to .2: the worse one counts
        (-1.0, 0.0, -3.0, 0.2, None, 0.5 * 2.8**2),  # clipped to -.2
        (1.0, 0.0, 0.1, 0.2, None, 0.5 * 0.9**2),  # unclipped is worse
        (0.1, 0.0, 3.0, 0.2, None, 0.5 * 2.9**2),  # within the range
        (0.6, 0.5, 3.0, 0.2, None, 0.5 * 2.4**2),
        (1.5, 0.5, 3.0, 0.2, None, 0.5 * 2.3**2),
        (0.5, 0.0, 0.0, None, 1.0, 0.125),  # Huber: squared inside delta
        (3.0, 0.0, 0.0, None, 1.0, 2.5),  # delta * (|d| - delta / 2)
        (-3.0, 0.0, 0.0, None, 2.0, 4.0),
        (1.0, 0.0, 3.0, 0.2, 1.0, 2.3),
    ],
)
def test_value_loss_of_one_token_by_hand(value, old, target, clip, huber, loss):
    columns = [tensor([[NAN, x]], dtype=torch.float64) for x in (value, old, target)]
    assert ppo.value_loss(*columns, tensor([[False, True]]), clip, huber).item() == pytest.approx(loss)


@pytest.mark.parametrize(("clip", "huber"), [(None, None), (None, 0.5), (0.2, 0.5)])
def test_value_loss_gradient_with_bad_numbers_behind_the_mask(clip, huber):
    mask = tensor([[True, False, True], [False, True, False]])
    values, old_values, returns = numbers(1, mask.tolist(), 3)
    clean = values.clone().requires_grad_()
    ppo.value_loss(clean, old_values, returns, mask, clip, huber).backward()
    leaf = spoil(values, mask).requires_grad_()
    ppo.value_loss(leaf, spoil(old_values, mask, (INF,)), spoil(returns, mask), mask, clip, huber).backward()
    assert torch.equal(leaf.grad, clean.grad)
    assert not leaf.grad[~mask].any()
    if clip is None:
        difference = (values - returns)[mask]
        slope = difference if huber is None else difference.clamp(-huber, huber)
        torch.testing.assert_close(leaf.grad[mask], slope / 3)


def replies_of(row):
    """The unbroken runs of True in a list, as lists of places."""
    runs = [[]]
    for t, counts in enumerate(row):
        runs[-1] += [t] if counts else []
        runs += [[]] if not counts and runs[-1] else []
    return [run for run in runs if run]


@given(masks.filter(lambda mask: any(map(any, mask))), seeds, st.sampled_from(["token", "sequence", "cispo"]))
def test_the_losses_of_recipes_and_their_gradients_in_loops(mask, seed, kind):
    """Of GSPO-token by eq. 14, with the weights of tokens and a high bound of its own; bad numbers behind the mask."""
    new, old, advantages = numbers(seed, mask, 3)
    counts = tensor(mask)
    weights = ppo.loss_weights(counts, "response", 9, old)
    low, high, total, clipped, slope = 0.1, 0.3, 0.0, 0, torch.zeros_like(new)
    for b, row in enumerate(mask):
        for reply in replies_of(row):
            logs = [new[b, t].item() - old[b, t].item() for t in reply]
            for t, log in zip(reply, logs, strict=True):
                a, weight = advantages[b, t].item(), weights[b, t].item()
                ratio = math.exp(sum(logs) / len(logs) if kind == "sequence" else log)
                if kind == "cispo":
                    bounded = min(ratio, 1 + high)
                    total, slope[b, t] = total - weight * bounded * a * new[b, t].item(), -weight * bounded * a
                    clipped += ratio > 1 + high
                    continue
                surrogate = min(ratio * a, min(max(ratio, 1 - low), 1 + high) * a)
                clipped += surrogate != ratio * a
                total, slope[b, t] = total - weight * surrogate, -weight * ratio * a * (surrogate == ratio * a)
    leaf = spoil(new, counts).requires_grad_()
    bad_old, bad_advantages = spoil(old, counts, (INF, NAN)), spoil(advantages, counts, (NAN, INF))
    clip = ppo.Clip(low, high, None, kind == "sequence")
    unread = torch.full_like(old, NAN)
    inputs = ppo.LossInputs(leaf, bad_old, unread, bad_advantages, weights, counts, 7, clip)
    loss, sums = (ppo.cispo_loss if kind == "cispo" else ppo.clip_loss)(inputs)
    loss.backward()
    assert loss.item() == pytest.approx(total / 7, abs=1e-9)
    assert sums["clip_fraction"].item() == pytest.approx(clipped / 7)
    torch.testing.assert_close(leaf.grad, slope / 7)


def test_weights_of_tokens_by_hand():
    """Responses of 1, 3 and 2 tokens, one with a hole, so a mean of 2; at most 8 tokens."""
    mask = tensor([[True, False, False, False], [True, False, True, True], [False, True, True, False]])
    like, two = torch.zeros(3, 4), tensor(2.0)
    found = {name: ppo.loss_weights(mask, name, 8, like) for name in ("rollout", "response", "length")}
    assert torch.equal(found["rollout"], torch.ones(3, 4))
    torch.testing.assert_close(found["response"][mask], two / tensor([1.0, 3, 3, 3, 2, 2]))
    torch.testing.assert_close(found["length"][mask], (two / 8).expand(6))
    # of two ranks, this one has the first two responses, 4 tokens in 2; all have 9 in 3, so a mean of 3
    other = tensor([5.0, 1.0], dtype=torch.float64)
    for average in ("response", "length"):
        ours = ppo.loss_weights(mask[:2], average, 8, like[:2], total=lambda x: x + other)
        torch.testing.assert_close(ours, found[average][:2] * 1.5)


def test_grpo_without_the_deviation_of_its_group():
    """Of Dr. GRPO: rewards 1, 2, 6 minus their mean of 3; penalties as with it."""
    mask, credit = (
        torch.ones(3, 1, dtype=torch.bool),
        ppo.Credit(gamma=1.0, num_responses_per_prompt=3, group_std=False),
    )
    paid, penalties = tensor([[1.0], [2.0], [6.0]]), tensor([[0.3], [0.0], [0.0]])
    found, _ = ppo.grpo_advantages(paid, penalties, paid, mask, credit)
    torch.testing.assert_close(found, tensor([[-2.0 + 0.2], [-1.0 - 0.1], [3.0 - 0.1]]))


def test_group_advantages_by_hand():
    """Two prompts with three responses each; the sums over the True positions: 1, 2, 6 and 4, 4, 4."""
    mask = tensor([[True, True], [True, False], [False, True], [True, True], [True, False], [True, True]])
    paid = tensor([[0.5, 0.5], [2.0, NAN], [INF, 6.0], [1.0, 3.0], [4.0, 99.0], [4.0, 0.0]])
    free = torch.zeros(6, 2)
    credit = ppo.Credit(gamma=0.5, num_responses_per_prompt=3)
    rloo, returns = ppo.rloo_advantages(paid, free, torch.full((6, 2), NAN), mask, credit)
    # half of what the second token gets comes to the first one; the 99 belongs to the token before it
    assert returns.tolist() == [[0.75, 0.5], [2, 0], [0, 6], [2.5, 3], [103, 0], [4, 0]]
    # each sum minus the mean of the other two: 1 - 4, 2 - 3.5, 6 - 1.5
    assert rloo.tolist() == [[-3, -3], [-1.5, 0], [0, 4.5], [0, 0], [0, 0], [0, 0]]
    grpo, same = ppo.grpo_advantages(paid, free, torch.full((6, 2), NAN), mask, credit)
    assert torch.equal(same, returns)
    deviation = math.sqrt((4 + 1 + 9) / 2) + 1e-4  # mean 3, sample deviation
    expected = tensor([[-2.0, -2.0], [-1.0, 0.0], [0.0, 3.0], [0, 0], [0, 0], [0, 0]]) / deviation
    torch.testing.assert_close(grpo, expected)
    assert ppo.flat_groups(paid, mask, credit) == 1  # the second


def test_the_tokens_of_a_group_are_compared_by_their_number_not_by_their_column():
    """Penalties of -.1, -.2, -.4 and -.1, -.2, -.7, so still to come are -.7, -.6, -.4 and -1, -.9, -.7: always .3 apart."""
    mask = tensor([[True, True, False, False, True], [True, True, True, False, False]])
    penalties = tensor([[-0.1, -0.2, NAN, INF, -0.4], [-0.1, -0.2, -0.7, NAN, -INF]]).double()
    nothing, credit = torch.zeros(2, 5).double(), ppo.Credit(gamma=1.0, num_responses_per_prompt=2)
    rloo, _ = ppo.rloo_advantages(nothing, penalties, nothing, mask, credit)
    expected = tensor([[0.3, 0.3, 0, 0, 0.3], [-0.3, -0.3, -0.3, 0, 0]]).double()
    torch.testing.assert_close(rloo, expected, rtol=0, atol=1e-6)
    grpo, _ = ppo.grpo_advantages(nothing, penalties, nothing, mask, credit)
    torch.testing.assert_close(grpo, expected / 2, rtol=0, atol=1e-6)  # less the mean of both


def test_a_group_without_spread_has_no_advantage_but_its_penalties():
    """Equal scores and a tiny KL: divided by the deviation of the sums, the KL alone would give advantages near 1."""
    mask = torch.ones(4, 2, dtype=torch.bool)
    paid = tensor([[0.0, 0.3], [0.0, 0.3], [0.0, 0.1], [0.0, 0.9]])
    penalties = tensor([[-0.001, 0.002], [0.003, -0.001], [0.0, 0.0], [0.0, 0.0]])
    credit = ppo.Credit(gamma=1.0, num_responses_per_prompt=2)
    grpo, _ = ppo.grpo_advantages(paid, penalties, torch.zeros(4, 2), mask, credit)
    torch.testing.assert_close(grpo[:2], tensor([[-0.0005, 0.0015], [0.0005, -0.0015]]))
    assert grpo[2:].abs().min() > 0.7
    assert ppo.flat_groups(paid, mask, credit) == 1
    by_rounding = tensor([[0.1, 0.2], [0.3, 0.0]])  # which in float32 is no spread
    assert by_rounding.double().sum(dim=1).unique().numel() == 2
    assert ppo.flat_groups(by_rounding, mask[:2], credit) == 1


@pytest.mark.parametrize("advantages_of", [ppo.rloo_advantages, ppo.grpo_advantages])
def test_the_sums_of_a_group_are_of_float64(advantages_of):
    """Beside 2**24 a float32 has no room for 1: the rewards of the turns of the first response are 2**24, 1, 1."""
    mask = torch.ones(2, 3, dtype=torch.bool)
    paid, none = tensor([[2.0**24, 1.0, 1.0], [2.0**24, 0.0, 0.0]]), torch.zeros(2, 3)
    credit = ppo.Credit(gamma=1.0, num_responses_per_prompt=2)
    found, _ = advantages_of(paid, none, none, mask, credit)
    expected = 2.0 if advantages_of is ppo.rloo_advantages else 1 / (math.sqrt(2) + 1e-4)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, tensor([[expected] * 3, [-expected] * 3]))
    penalised, _ = advantages_of(none, paid, none, mask, credit)
    assert penalised[0, 0] == (2.0 if advantages_of is ppo.rloo_advantages else 1.0)


def test_kl_controller_by_hand():
    controller = ppo.AdaptiveKLController(kl_coef=0.2, kl_target=0.05, kl_rate=0.1, kl_clip=0.2)
    assert controller.update(0.055) == pytest.approx(0.2 * 1.01)  # error .1, inside the clip
    assert controller.update(5.0) == pytest.approx(0.2 * 1.01 * 1.02)  # at most 2 % up
    assert controller.update(-5.0) == pytest.approx(0.2 * 1.01 * 1.02 * 0.98)  # at most 2 % down
    assert controller.update(0.05) == controller.kl_coef == pytest.approx(0.2 * 1.01 * 1.02 * 0.98)
    assert controller.update(0.045) == pytest.approx(0.2 * 1.01 * 1.02 * 0.98 * 0.99)
    assert ppo.AdaptiveKLController(kl_coef=0.3, kl_rate=0.0).update(9.0) == 0.3


@pytest.mark.parametrize("hold", [True, False])
def test_kl_coefficient_is_held_until_the_target_was_reached_once(hold):
    controller = ppo.AdaptiveKLController(kl_coef=1.0, kl_target=0.05, kl_rate=0.1, kl_clip=0.2, hold=hold)
    found = [controller.update(kl) for kl in (0.0, 0.01, 0.049)]
    assert found == ([1, 1, 1] if hold else pytest.approx([0.98, 0.98**2, 0.98**2 * 0.998]))
    before = controller.update(0.05)
    assert controller.update(0.0) == pytest.approx(before * 0.98)  # then it falls again


def test_kl_coefficient_has_a_bound_and_its_growth_is_known():
    controller = ppo.AdaptiveKLController(kl_coef=0.2, kl_rate=1.0, kl_clip=0.5, kl_coef_max=1.0)
    assert [controller.update(9.0) for _ in range(6)][2:] == pytest.approx([0.2 * 1.5**3, 1.0, 1.0, 1.0])
    assert (controller.num_above, controller.growth, controller.at_its_bound) == (6, pytest.approx(5), True)
    for _ in range(3):  # a dip of three iterations does not bring it down
        controller.update(0.05)
    controller.update(9.0)
    assert (controller.num_above, controller.growth) == (7, pytest.approx(5))
    for _ in range(4):
        controller.update(0.05)
    assert (controller.num_above, controller.growth) == (0, 1)
    above = ppo.AdaptiveKLController(kl_coef=3.0, kl_rate=1.0, kl_clip=0.5, kl_coef_max=1.0)
    assert [above.update(kl) for kl in (9.0, 0.0, 9.0)] == [3.0, 1.5, 1.5]  # as the user set it, but no higher


def test_kl_controller_defaults_and_state():
    controller = ppo.AdaptiveKLController()
    assert (controller.kl_coef, controller.kl_target, controller.kl_rate, controller.kl_clip) == (0.2, 0.05, 0.1, 0.2)
    assert (controller.hold, controller.kl_coef_max) == (True, math.inf)
    other = ppo.AdaptiveKLController()
    controller.update(1.0)
    other.load_state_dict(controller.state_dict())
    assert vars(other) == vars(controller)
    assert other.update(0.05) == controller.kl_coef == pytest.approx(0.204)
    early = ppo.AdaptiveKLController(hold=False)
    early.load_state_dict({"kl_coef": 0.4})  # a state that holds nothing else
    assert early.update(0.0) == pytest.approx(0.4 * 0.98)


def test_value_normalizer_against_the_weighted_sums():
    """Bias-corrected exponential means: weight beta^(n-1-i) for the i-th of n rollouts."""
    beta, mask = 0.9, tensor([[True, False], [True, True]])
    rollouts = [tensor([[1.0, NAN], [2.0, 6.0]]), tensor([[-3.0, INF], [0.0, 9.0]]), tensor([[4.0, NAN], [4.0, 1.0]])]
    normalizer = ppo.ValueNormalizer(beta=beta)
    x = tensor([1.0, -2.0])
    assert normalizer.normalize(x).tolist() == normalizer.denormalize(x).tolist() == x.tolist()
    for returns in rollouts:
        normalizer.update(returns, mask)
    kept = [[row[0][0], *row[1]] for row in (returns.tolist() for returns in rollouts)]
    weights = [beta ** (2 - i) for i in range(3)]
    mean = sum(w * sum(r) / 3 for w, r in zip(weights, kept, strict=True)) / sum(weights)
    square = sum(w * sum(v * v for v in r) / 3 for w, r in zip(weights, kept, strict=True)) / sum(weights)
    deviation = math.sqrt(square - mean**2)
    assert (normalizer.mean, normalizer.deviation) == pytest.approx((mean, deviation), rel=1e-6)
    torch.testing.assert_close(normalizer.normalize(x), (x - mean) / deviation)
    torch.testing.assert_close(normalizer.denormalize(x), x * deviation + mean)


def test_value_normalizer_floor_defaults_and_state():
    normalizer = ppo.ValueNormalizer()
    assert (normalizer.beta, normalizer.min_variance) == (0.99999, 1e-2)
    normalizer.update(tensor([[3.0, 3.0]]), tensor([[True, True]]))
    assert (normalizer.mean, normalizer.deviation) == pytest.approx((3.0, 0.1))
    normalizer.update(tensor([[5.0, 9.0]]), tensor([[True, True]]))
    other = ppo.ValueNormalizer()
    other.load_state_dict(normalizer.state_dict())
    assert (other.mean, other.deviation) == (normalizer.mean, normalizer.deviation)
    assert (other.mean, other.deviation) == pytest.approx((5, math.sqrt(6)), 1e-3)


@pytest.mark.parametrize("level", [1e4, -3e4])
def test_value_normalizer_of_a_small_deviation_around_a_large_mean(level):
    """In float32 the squares of 10,000 differ by 8, so that their mean could not show a variance of 1."""
    noise = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    returns = level + noise
    normalizer = ppo.ValueNormalizer()
    normalizer.update(returns, torch.ones_like(returns, dtype=torch.bool))
    assert normalizer.deviation == pytest.approx(noise.double().std(correction=0).item(), rel=1e-2)
    assert normalizer.normalize(returns).abs().max() < 5
