import shutil
from functools import partial

import numpy as np
import pytest

from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.task_oriented.policies.base import Episode, PolicySpec, stream
from rlhf_dialog.task_oriented.policies.gp_sarsa import GPSarsa, load_prior
from rlhf_dialog.task_oriented.policies.kernels import (
    ActionBlock,
    BeliefKernel,
    list_parts,
    relate_actions,
)
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from rlhf_dialog.task_oriented.world.multi_domain.actions import MultiLayout
from rlhf_dialog.task_oriented.world.summary import Layout, action_names
from tests.parts.several_policies import piece, saved, straight_and_resumed
from tests.parts.small_domain import small_domain
from tests.parts.small_world import small_world

DOMAIN = small_domain()
SIZES = ActLevel(DOMAIN).layout.size, len(ActLevel(DOMAIN).names)
SETTING = PolicySpec(*SIZES, domain=DOMAIN)
EXACT = {"nu": 0.0, "relative_nu": 0.0}


def random_dialogues(count, seed=0):
    """Whole dialogues with the right sizes; rewards are normal numbers."""
    rng, found = np.random.default_rng(seed), []
    for number in range(count):
        length = int(rng.integers(1, 9))
        observations = rng.random((length + 1, SIZES[0])).astype(np.float32)
        rewards, zeros = rng.normal(-1, 5, length).astype(np.float32), np.zeros(length, np.float32)
        actions = rng.integers(SIZES[1], size=length)
        seen = observations[:-1], np.ones((length, SIZES[1]), bool), actions
        ends = number % 2 == 0, number % 2 == 1, observations[-1]
        found.append(Episode(*seen, zeros, rewards, zeros, *ends, dialogue=number))
    return found


def taught(policy, episodes):
    for one in episodes:
        policy.observe(one)
    policy.update()
    return policy


def reference(episodes, asked, kernel, actions, gamma, sigma, deviation, prior_mean):
    """Equations 9 and 10 of Gasic and Young (2014): mean and variance (N, A), with H K H' + sigma^2 H H' whole."""
    lengths = [len(one) for one in episodes]
    ends = np.cumsum(lengths) - 1
    h = np.eye(sum(lengths)) - gamma * np.eye(sum(lengths), k=1) * ~np.isin(np.arange(sum(lengths)), ends)[:, None]
    rows = kernel.features(np.concatenate([one.observations for one in episodes]))
    its = np.concatenate([one.actions for one in episodes])
    rewards = np.concatenate([one.rewards for one in episodes]) - h @ np.full(len(its), prior_mean)
    gram = deviation**2 * kernel(rows, rows) * actions[np.ix_(its, its)]
    inner = h @ gram @ h.T + sigma**2 * h @ h.T
    mean, variance = np.empty((2, len(asked), len(actions)))
    for action in range(len(actions)):
        across = deviation**2 * kernel(kernel.features(asked), rows) * actions[action, its] @ h.T
        mean[:, action] = prior_mean + across @ np.linalg.solve(inner, rewards)
        variance[:, action] = deviation**2 - (across * np.linalg.solve(inner, across.T).T).sum(axis=1)
    return mean, variance


@pytest.mark.parametrize("name", ["polysort", "gausssort"])
@pytest.mark.parametrize(("action_kernel", "gamma"), [("delta", 1.0), ("delta", 0.9), ("handcrafted", 1.0)])
def test_the_posterior_is_that_of_the_full_kernel_matrix(name, action_kernel, gamma):
    episodes, asked = random_dialogues(5), random_dialogues(2, seed=1)[0].observations
    assert 18 <= sum(len(one) for one in episodes) <= 30
    known = {"sigma": 3.0, "prior_mean": 4.0, "prior_deviation": 10.0, "gamma": gamma}
    policy = GPSarsa(SETTING, kernel=name, action_kernel=action_kernel, similarity=0.6, **EXACT, **known)
    taught(policy, episodes[:2])
    taught(policy, episodes[2:])
    kernel, actions = BeliefKernel(name, list_parts(SETTING)), relate_actions(action_kernel, SETTING, 0.6)
    expected = reference(episodes, asked, kernel, actions, gamma, 3.0, 10.0, 4.0)
    np.testing.assert_allclose(policy.posterior(asked), expected, rtol=1e-7, atol=1e-8)


def test_a_dialogue_that_was_cut_is_learned_whole_and_not_before_it_ends(tmp_path):
    episodes = random_dialogues(4)
    whole, cut = GPSarsa(SETTING), GPSarsa(SETTING)
    one = max(episodes, key=len)
    assert len(one) >= 5
    before = cut.posterior(one.observations)
    for first, last in ((0, 2), (2, 3)):
        taught(cut, [piece(one, first, last)])
        np.testing.assert_array_equal(cut.posterior(one.observations), before)
    assert cut.num_dialogues == 0
    taught(cut, [piece(one, 3, len(one))])
    taught(whole, [one])
    assert cut.num_dialogues == 1
    np.testing.assert_array_equal(cut.posterior(one.observations), whole.posterior(one.observations))


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_an_action_is_the_best_allowed_one_of_mean_plus_scale_times_deviation_times_a_normal_number(scale):
    policy = taught(GPSarsa(SETTING, scale=scale, sigma=15.0), random_dialogues(20))
    asked = np.concatenate([one.observations for one in random_dialogues(20, seed=5)])
    (mean, variance), masks = policy.posterior(asked), np.random.default_rng(0).random((len(asked), SIZES[1])) < 0.6
    expected = []
    for row in range(len(asked)):
        draws = stream(1, row, 0)
        worth = [m + scale * v**0.5 * draws.gauss(0.0, 1.0) for m, v in zip(mean[row], variance[row], strict=True)]
        expected.append(max(np.flatnonzero(masks[row]).tolist(), key=worth.__getitem__))
    actions, extras = policy.act(asked, masks, False, [stream(1, row, 0) for row in range(len(asked))])
    assert actions.tolist() == expected
    np.testing.assert_allclose(extras["values"], mean[range(len(asked)), actions], rtol=1e-5)


def test_an_earlier_policy_is_the_prior_mean_and_travels_with_what_is_saved(tmp_path):
    old, new = random_dialogues(6), random_dialogues(6, seed=1)
    folder, kept = tmp_path / "old", tmp_path / "new"
    folder.mkdir()
    kept.mkdir()
    first = taught(GPSarsa(SETTING), old)
    first.save(folder)
    policy = GPSarsa(SETTING, prior=str(folder), prior_mean=2.0, **EXACT)
    asked = new[0].observations
    np.testing.assert_allclose(policy.posterior(asked)[0], first.posterior(asked)[0] + 2.0)
    np.testing.assert_allclose(policy.posterior(asked)[1], 400.0)
    taught(policy, new)
    for one in new:  # what each return is above the prior mean, as rewards
        above = (
            one.rewards[::-1].cumsum()[::-1] - 2.0 - first.posterior(one.observations)[0][range(len(one)), one.actions]
        )
        one.rewards = above - np.append(above[1:], 0.0)
    learned, _ = reference(new, asked, policy.belief, np.eye(SIZES[1]), 1.0, 5.0, 20.0, 0.0)
    expected = first.posterior(asked)[0] + 2.0 + learned
    np.testing.assert_allclose(policy.posterior(asked)[0], expected, rtol=1e-5, atol=1e-5)
    policy.save(kept)
    shutil.rmtree(folder)
    again = GPSarsa(SETTING, prior=str(folder), prior_mean=2.0, **EXACT)
    again.load(kept)
    np.testing.assert_array_equal(again.posterior(asked), policy.posterior(asked))
    np.testing.assert_array_equal(load_prior(kept, SETTING).posterior(asked), policy.posterior(asked))


def test_the_dictionary_stays_small_and_below_its_cap():
    episodes = random_dialogues(60)
    few = {"relative_nu": 0.2}, {"max_points": 9}
    sizes = [taught(GPSarsa(SETTING, **args), episodes).num_points for args in (EXACT, *few)]
    turns = sum(len(one) for one in episodes)
    assert sizes[0] == turns
    assert taught(GPSarsa(SETTING, nu=0.2 * 400, relative_nu=0.0), episodes).num_points == sizes[1]
    assert 9 < sizes[1] < turns
    assert sizes[2] == 9


@pytest.mark.parametrize("has_prior", [False, True])
def test_n_dialogues_saved_loaded_and_n_more_are_two_n_bit_for_bit(tmp_path, has_prior):
    args = {"kernel": "gausssort", "degree": 2}
    if has_prior:
        saved(taught(GPSarsa(SETTING), random_dialogues(5)), tmp_path / "prior")
        args["prior"] = str(tmp_path / "prior")
    make = partial(ActLevel, DOMAIN, 0.3)
    pair = straight_and_resumed(tmp_path, lambda _: GPSarsa(SETTING, **args), make, 4, 21, iterations=6)
    (_, files), (policy, others) = pair
    assert files == others
    assert policy._open  # dialogues under way, whose turns must come back
    policy.observe(random_dialogues(1)[0])  # it has ended, and is not learned yet
    policy.save(tmp_path / "resumed")
    again = GPSarsa(SETTING, **args)
    again.load(tmp_path / "resumed")
    assert again.update() == policy.update()


def test_files_of_other_arguments_or_damaged_ones_are_refused(tmp_path):
    taught(GPSarsa(SETTING), random_dialogues(3)).save(tmp_path)
    with pytest.raises(UserError, match=r"saved with the arguments .*'sigma': 5.0.* but these are .*'sigma': 4.0"):
        GPSarsa(SETTING, sigma=4.0).load(tmp_path)
    for name, text in (("policy.json", "3"), ("policy.safetensors", "")):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match="does not fit this policy, or is damaged"):
            GPSarsa(SETTING).load(tmp_path)
    with pytest.raises(UserError, match=r"policy\.args\.prior: .* holds no gp_sarsa; name RUN/agent"):
        GPSarsa(SETTING, prior=str(tmp_path / "nowhere")).posterior(np.zeros((1, SIZES[0]), np.float32))


def test_a_reward_that_is_not_finite_stops_the_run_before_anything_is_learned():
    policy, one = GPSarsa(SETTING), random_dialogues(2)[1]
    one.rewards[-1] = np.nan
    policy.observe(one)
    with pytest.raises(RunStopped, match="dialogue 1: a reward or a belief is not finite"):
        policy.update()
    assert policy.num_points == 0


def test_a_turn_counts_as_much_as_its_weight(tmp_path):
    """In the closed form: for one belief and action, the return 6 with the weights w has the precision w / sigma^2 each."""
    one = random_dialogues(1)[0]
    one.observations, one.rewards = one.observations[:1].repeat(3, axis=0), np.array([2.0, 0.0, 4.0], np.float32)
    one.actions, one.masks = np.array([1, 1, 2]), one.masks[:1].repeat(3, axis=0)
    one.extras = {"weights": np.array([0.5, 0.25, 0.0], np.float32)}
    policy = GPSarsa(SETTING, sigma=2.0, prior_deviation=3.0)
    policy.observe(one)
    policy.save(tmp_path)
    again = GPSarsa(SETTING, sigma=2.0, prior_deviation=3.0)
    again.load(tmp_path)
    for each in (policy, again):
        each.update()
        mean, variance = each.posterior(one.observations[:1])
        precision = 1 / 9 + 0.75 / 4  # the weights 0.5 and 0.25 over sigma^2
        assert variance[0, 1] == pytest.approx(1 / precision)
        assert mean[0, 1] == pytest.approx((0.5 / 4 * 6 + 0.25 / 4 * 4) / precision)
        assert (mean[0, 2], variance[0, 2]) == pytest.approx((0, 9))


LAYOUT = Layout(DOMAIN)
NAMES = action_names(DOMAIN)


def beliefs(count, seed=0):
    """Observations (N, D) whose parts that are distributions sum to 1, with zeros among them."""
    rng = np.random.default_rng(seed)
    rows = rng.random((count, LAYOUT.size)) * (rng.random((count, LAYOUT.size)) < 0.6)
    for part in (*LAYOUT.slots.values(), LAYOUT.method):
        rows[:, part] = rng.dirichlet(np.full(part.stop - part.start, 0.3), size=count)
    return rows.astype(np.float32)


def test_the_parts_fill_the_observation_and_a_value_may_stand_for_each_other_one_but_none():
    parts = list_parts(SETTING)
    assert sum(size for size, _ in parts) == LAYOUT.size
    sizes = [part.stop - part.start for part in LAYOUT.slots.values()]
    assert parts[: len(sizes)] == [(size, size - 1) for size in sizes]
    # method, discourse act, four requestable slots, two flags; how many entities fit and whether they differ, for each slot
    assert parts[len(sizes) :] == [(6, 0), (6, 0), (4, 4), (1, 0), (1, 0), (4, 0), (1, 0), (4, 0), (1, 0)]
    assert list_parts(PolicySpec(7, 2)) == [(7, 0)]
    layout = MultiLayout(small_world())
    assert list_parts(PolicySpec(7, 2, domain=small_world())) == [(7, 0)]
    several = list_parts(PolicySpec(layout.size, len(layout.names), domain=small_world()))
    assert several == [*[(1, 0)] * (layout.size - 1 - len(layout.names)), (len(layout.names), 0), (1, 0)]
    assert list_parts(PolicySpec(7, 2), [4, 3]) == [(4, 4), (3, 3)]


def slow(name, one, other, parts, degree, length_scale):
    """The definition, part by part and in plain Python, of two observations (D,)."""
    total, start = 0.0, 0
    for size, same in parts:
        x, y = (row[start : start + size].astype(np.float64).tolist() for row in (one, other))
        if name.endswith("sort"):
            x, y = (sorted(v[:same], reverse=True) + v[same:] for v in (x, y))
        x, y = ([*v, max(0.0, 1 - sum(v))] for v in (x, y))
        if name.startswith("gauss"):
            total += np.exp(-sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / (2 * length_scale**2))
        else:
            norms = sum(a * a for a in x) * sum(b * b for b in y)
            total += sum(a * b for a, b in zip(x, y, strict=True)) / norms**0.5
        start += size
    return (total / len(parts)) ** degree


@pytest.mark.parametrize("name", ["polysort", "gausssort", "poly", "gauss"])
def test_the_kernel_is_its_definition(name):
    rows, args = np.concatenate([beliefs(6), np.zeros((1, SIZES[0]), np.float32)]), {"degree": 2, "length_scale": 0.3}
    expected = [[slow(name, one, other, list_parts(SETTING), **args) for other in rows] for one in rows]
    kernel = BeliefKernel(name, list_parts(SETTING), **args)
    np.testing.assert_allclose(kernel(kernel.features(rows), kernel.features(rows)), expected, atol=1e-12)


def test_the_handcrafted_action_kernel_relates_the_same_act_about_other_slots_only():
    found = relate_actions("handcrafted", SETTING, 0.4)
    at = {name: number for number, name in enumerate(NAMES)}
    assert found[at["request_tea"], at["request_area"]] == found[at["select_area"], at["select_tea"]] == 0.4
    assert found[at["request_tea"], at["confirm_tea"]] == found[at["inform"], at["inform_byname"]] == 0.0
    np.testing.assert_array_equal(found.diagonal(), 1.0)
    assert np.linalg.eigvalsh(found).min() > 0
    np.testing.assert_array_equal(relate_actions("delta", SETTING, 0.4), np.eye(len(NAMES)))


VARIANCE, NOISE = 9.0, 4.0
KERNEL = BeliefKernel("gauss", [(2, 0), (1, 0)], length_scale=0.4)
RELATIONS = np.array([[1.0, 0.3], [0.3, 1.0]])


def turns(count, seed=0):
    rng = np.random.default_rng(seed)
    features = KERNEL.features(rng.random((count, 3)).astype(np.float32))
    return features, rng.integers(2, size=count), rng.normal(3.0, 5.0, size=count)


def block(novelty, features, actions, values):
    found = ActionBlock(KERNEL, RELATIONS, [0, 1], VARIANCE)
    for row, action, value in zip(features, actions.tolist(), values, strict=True):
        found.learn(row[None], action, value, NOISE, novelty)
    found.refresh()
    return found


def covariance(one, its, other, others):
    return VARIANCE * KERNEL(one, other) * RELATIONS[np.ix_(its, others)]


def asked_of(found, features):
    mean, variance = found.posterior(KERNEL(features, found.points))
    return mean.ravel(), variance.ravel()


def test_it_is_engels_sparse_posterior_when_few_turns_join():
    features, actions, values = turns(60)
    found = block(0.5, features, actions, values)
    points, projections = [], np.zeros((60, 60))
    for number in range(60):  # approximate linear dependence, each projection on the dictionary of its time
        at = (features[[number]], actions[[number]])
        if points:
            known = features[points], actions[points]
            weights = np.linalg.solve(covariance(*known, *known), covariance(*known, *at))[:, 0]
            left = VARIANCE - weights @ covariance(*known, *at)[:, 0]
        if not points or left > 0.5:
            points, weights = [*points, number], np.eye(len(points) + 1)[-1]
        projections[number, : len(weights)] = weights
    assert 10 < len(points) < 50
    np.testing.assert_array_equal(found.points, features[points])
    others = turns(7, seed=1)[0]
    asked = others.repeat(2, axis=0), np.tile([0, 1], 7)
    known, a = (features[points], actions[points]), projections[:, : len(points)]  # a: the turns on the points
    noisy = a @ covariance(*known, *known) @ a.T + NOISE * np.eye(60)
    across = covariance(*asked, *known) @ a.T
    variance = VARIANCE - (across * np.linalg.solve(noisy, across.T).T).sum(axis=1)
    expected = across @ np.linalg.solve(noisy, values), variance
    np.testing.assert_allclose(asked_of(found, others), expected, rtol=1e-6)


def test_a_turn_that_is_known_already_does_not_join_and_counts_all_the_same():
    features, actions, values = turns(5)
    found = block(0.0, *(np.concatenate([x, x]) for x in (features, actions, values)))
    assert len(found.points) == 5
    once = block(0.0, features, actions, values)
    assert (asked_of(found, features)[1] < asked_of(once, features)[1]).all()
    assert np.isfinite(asked_of(found, features)).all()
