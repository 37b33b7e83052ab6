import math
from random import Random

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from rlhf_dialog.task_oriented.domains import Domain
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.bbqn import BBQN, BayesianLayers, gaussian_kl
from rlhf_dialog.task_oriented.policies.dqn import DQN
from rlhf_dialog.task_oriented.policies.feudal import Feudal, FeudalNetwork, SlotFeatures
from rlhf_dialog.task_oriented.policies.handcrafted import RandomPolicy
from rlhf_dialog.task_oriented.policies.network import mlp
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from rlhf_dialog.task_oriented.world.summary import Layout, action_names
from tests.parts.several_policies import trained, watched
from tests.parts.small_domain import DATA, small_domain
from tests.parts.toy_environments import Colours

# of three actions in the states 0 and 1, by the policy's network
VALUES = torch.tensor([[1.0, 5.0, 3.0], [4.0, 0.0, 2.0]])
SLOW = torch.tensor([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]])  # by the target network


class Table(torch.nn.Module):
    """Values (N, ...) of the states that observations (N, 1) name."""

    def __init__(self, rows):
        super().__init__()
        self.rows = torch.nn.Parameter(torch.as_tensor(rows))

    def forward(self, observations):
        return self.rows[observations[:, 0].long()]


def test_the_target_is_the_slow_value_of_the_best_allowed_action_and_nothing_follows_an_end():
    policy = DQN(PolicySpec(1, 3), gamma=0.5)
    policy.learner.policy, policy.learner.slow = Table(VALUES), Table(SLOW)
    turns = {
        "rewards": torch.tensor([-1.0, -1.0, -1.0, 19.0]),
        "next_observations": torch.tensor([[0.0], [0.0], [1.0], [1.0]]),
        "next_masks": torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=torch.bool),
        "ended": torch.tensor([False, False, False, True]),
    }
    # the best actions by VALUES: 1; 2, as 1 is masked; 2, as 0 is masked; none, as the dialogue is over
    assert policy.targets(turns).tolist() == [-1 + 10, -1 + 15, -1 + 30, 19]


def test_one_step_lowers_the_squared_error():
    args = {"hidden_sizes": (4,), "batch_size": 16, "max_grad_norm": 1e6}
    policy = watched(DQN(PolicySpec(3, 4), **args), Colours, 30, num_envs=2)
    turns = policy.replay.turns(16, torch.Generator().manual_seed(7))
    values = policy.learner.policy(turns["observations"])[range(16), turns["actions"]]
    expected = torch.autograd.grad(((values - policy.targets(turns)) ** 2).mean(), policy.learner.policy.parameters())
    policy._step(torch.Generator().manual_seed(7))
    for weight, gradient in zip(policy.learner.policy.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient)


def test_exploration_falls_to_nothing_and_is_off_while_evaluating():
    policy = DQN(PolicySpec(1, 3), epsilon=0.4, epsilon_dialogues=100)
    policy.learner.policy = Table(VALUES)
    observations, masks = np.zeros((2000, 1), np.float32), np.ones((2000, 3), bool)
    shares = {}
    for num_dialogues in (0, 50, 100, 1000):
        policy.num_dialogues = num_dialogues
        actions, _ = policy.act(observations, masks, False, [Random(n) for n in range(2000)])
        shares[num_dialogues] = (actions != 1).mean()
    assert shares[0] == pytest.approx(0.4 * 2 / 3, abs=0.04)
    assert shares[50] == pytest.approx(0.2 * 2 / 3, abs=0.04)
    assert shares[100] == shares[1000] == 0
    policy.num_dialogues = 0
    policy.learner.slow = Table(VALUES[:, [1, 0, 2]])
    assert (policy.act(observations, masks, True, [Random(n) for n in range(2000)])[0] == 0).all()


def layers(sigma=0.3):
    generator = torch.Generator().manual_seed(0)
    found = BayesianLayers(mlp([3, 5, 2], generator, 1.0, torch.nn.ReLU), sigma)
    for rho in found.rhos:
        rho.data += 0.3 * torch.randn(rho.shape, generator=generator)
    return found, generator


def sigmas(own):
    return [(1 + rho.exp()).log() for rho in own.rhos]


def test_the_divergence_is_that_of_torch_over_all_weights_and_without_noise_the_means_act():
    own, _ = layers()
    pairs = list(zip(own.means.parameters(), sigmas(own), strict=True))
    expected = [kl_divergence(Normal(mean, sigma), Normal(torch.zeros(()), torch.tensor(0.7))) for mean, sigma in pairs]
    torch.testing.assert_close(gaussian_kl(*pairs[0], 0.7), expected[0].sum())
    torch.testing.assert_close(own.divergence(0.7), sum(each.sum() for each in expected))
    own, generator = layers()
    means, x = mlp([3, 5, 2], torch.Generator().manual_seed(0), 1.0, torch.nn.ReLU), torch.randn(4, 3)
    torch.testing.assert_close(own(x), means(x))
    assert not torch.equal(own(x, own.noise(4, generator)), own(x))


def test_noise_of_the_units_draws_what_drawn_weights_would_give():
    own, generator = layers()
    x, count = torch.tensor([[0.5, -1.0, 2.0]]), 20_000
    with torch.no_grad():
        found = own(x.expand(count, 3), own.noise(count, generator))
        w1, b1, w2, b2 = (
            mean + sigma * torch.randn(count, *mean.shape, generator=generator)
            for mean, sigma in zip(own.means.parameters(), sigmas(own), strict=True)
        )
        hidden = ((w1 @ x[0]) + b1).relu()
        expected = (w2 @ hidden[:, :, None])[:, :, 0] + b2
    spread = expected.std(dim=0)
    assert ((found.mean(dim=0) - expected.mean(dim=0)).abs() < 0.03 * spread).all()
    torch.testing.assert_close(found.std(dim=0), spread, rtol=0.03, atol=0)
    torch.testing.assert_close(found.T.corrcoef()[0, 1], expected.T.corrcoef()[0, 1], rtol=0, atol=0.03)


def test_a_turn_draws_its_own_weights_from_its_stream_and_an_evaluation_draws_none():
    policy = BBQN(PolicySpec(3, 4), hidden_sizes=(8,), initial_sigma=0.5)
    observations, masks = np.ones((300, 3), np.float32), np.ones((300, 4), bool)
    drawn = [policy.act(observations, masks, False, [Random(n) for n in range(300)])[0] for _ in range(2)]
    assert len(set(drawn[0].tolist())) > 1
    np.testing.assert_array_equal(*drawn)
    alone = [policy.act(observations[:1], masks[:1], False, [Random(n)])[0][0] for n in range(20)]
    assert alone == drawn[0][:20].tolist()
    policy.learner.slow.means[-1].bias.data[2] += 100
    assert (policy.act(observations, masks, True, [Random(n) for n in range(300)])[0] == 2).all()


def test_the_loss_is_minus_the_log_likelihood_and_the_share_of_the_divergence():
    args = {"hidden_sizes": (4,), "batch_size": 8, "noise_sigma": 2.0, "kl_coef": 0.5}
    policy = watched(BBQN(PolicySpec(3, 4), **args), Colours, 30, num_envs=2)
    generator = torch.Generator().manual_seed(3)
    turns, noise = policy.replay.turns(8, generator), policy.layers.noise(8, generator)
    values = policy.layers(turns["observations"], noise)[range(8), turns["actions"]]
    likelihood = Normal(values, 2.0).log_prob(policy.targets(turns)) - Normal(0.0, 2.0).log_prob(torch.zeros(()))
    expected = -likelihood.mean() + 0.5 * policy.layers.divergence(policy.args.prior_sigma) / 30
    torch.testing.assert_close(policy._loss(torch.Generator().manual_seed(3))[0], expected)


DOMAIN = small_domain()
LAYOUT, NAMES = Layout(DOMAIN), action_names(DOMAIN)
SETTING = PolicySpec(LAYOUT.size, len(NAMES), seed=1, domain=DOMAIN)
REQUEST, GIVE = range(6), range(6, 13)  # the actions of the two workers


def tea(error_rate=0.3):
    return ActLevel(DOMAIN, error_rate)


def turned_around():
    """The same cafes with their slots in the other order."""
    constraints = dict(reversed(DATA["constraints"].items()))
    return Domain("tea", "cafe", constraints, DATA["requestable"], DATA["entities"])


def network(domain, seed=0):
    made = FeudalNetwork(domain, [16, 8], torch.Generator().manual_seed(seed))
    for weights in made.parameters():  # the last layers begin near 0
        torch.nn.init.normal_(weights, 0.0, 0.5, generator=torch.Generator().manual_seed(seed))
    return made


def test_other_order_of_slots_moves_the_values_of_their_actions_and_changes_no_other_value():
    episodes = Sampler(tea, 0, 4).sample(RandomPolicy(SETTING), 40)
    other, observations = turned_around(), torch.from_numpy(np.concatenate([one.observations for one in episodes]))
    first, second = (network(each) for each in (DOMAIN, other))
    layout, names = Layout(other), action_names(other)
    columns = [column for slot in layout.slots for column in range(LAYOUT.size)[LAYOUT.slots[slot]]]
    columns += range(len(columns), LAYOUT.size)
    expected, found = first(observations), second(observations[:, columns])
    assert names[:6] == NAMES[3:6] + NAMES[:3]
    order = [NAMES.index(name) for name in names] + [13, 14]
    torch.testing.assert_close(found, expected[:, order])
    assert (found - expected).abs().max() > 0.1
    assert (expected[:, 0] - expected[:, 3]).abs().max() > 0.1


def test_the_features_are_those_of_the_definition():
    row = torch.zeros(LAYOUT.size)
    row[LAYOUT.slots["tea"]] = torch.tensor([0.1, 0.4, 0.0, 0.0, 0.5])  # green, black, white, dontcare, none
    row[LAYOUT.slots["area"]] = torch.tensor([0.0, 0.6, 0.1, 0.3])
    row[LAYOUT.requested] = torch.tensor([0.5, 0.0, 0.0, 0.9])  # name, phone, hours, area
    row[LAYOUT.method], row[LAYOUT.discourse_act] = torch.arange(6) / 10, torch.arange(6) / 20
    row[LAYOUT.offer_happened], row[LAYOUT.nothing_found] = 1.0, 0.25
    row[LAYOUT.counts] = torch.arange(10) / 10
    entropy_of_tea = -sum(p * math.log(p) for p in (0.1, 0.4, 0.5)) / math.log(5)
    entropy_of_area = -sum(p * math.log(p) for p in (0.6, 0.1, 0.3)) / math.log(4)
    expected = [
        [0.4, 0.1, 0.0, 0.5, 0.0, entropy_of_tea, 0, 0, math.log(5) / 5],
        [0.6, 0.1, 0.0, 0.3, 0.1, entropy_of_area, 1, 0.9, math.log(4) / 5],
    ]
    pairs = list(zip(*expected, strict=True))
    dialogue = [n / 10 for n in range(6)] + [n / 20 for n in range(6)] + [1.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.4, 0.9]
    dialogue += [sum(pair) / 2 for pair in pairs] + [max(pair) for pair in pairs] + [min(pair) for pair in pairs]
    slots, of_dialogue = SlotFeatures(DOMAIN)(row[None])
    torch.testing.assert_close(slots[0], torch.tensor(expected))
    torch.testing.assert_close(of_dialogue[0], torch.tensor(dialogue))
    row[LAYOUT.slots["tea"]] = torch.tensor([0.1, 0.4, 0.0, 0.2, 0.3])  # accepted above 1 / 2.9, and from `none` on
    row[LAYOUT.slots["area"]] = torch.tensor([0.5, 0.1, 0.1, 0.3])  # accepted above 1 / 1.9
    assert SlotFeatures(DOMAIN)(row[None])[0][0, :, 6].tolist() == [1.0, 0.0]


def tables(seed=0):
    """A policy whose learned and slow values of five states are tables of random numbers."""
    rng, policy = np.random.default_rng(seed), Feudal(SETTING, gamma=0.5, batch_size=32)
    learned, slow = rng.normal(size=(2, 5, 15)).astype(np.float32)
    policy.learner.policy, policy.learner.slow = Table(learned), Table(slow)
    return policy, learned.tolist(), slow.tolist()


def chosen(values, mask):
    """The action of the worker with the larger value that may do anything, in plain Python."""
    workers = {13: [n for n in REQUEST if mask[n]], 14: [n for n in GIVE if mask[n]]}
    worker = max((n for n in workers if workers[n]), key=lambda n: values[n])
    return max(workers[worker], key=lambda n: values[n])


def random_turns(num):
    rng = np.random.default_rng(3)
    states, masks = rng.integers(5, size=(num, 1)), rng.random((num, 13)) < 0.2
    masks[masks.sum(axis=1) == 0, 8] = True
    return states.astype(np.float32), masks


def test_a_worker_without_an_allowed_action_is_never_chosen_and_the_master_decides_between_the_others():
    policy, *values = tables()
    states, masks = random_turns(2000)
    policy.num_dialogues = policy.args.epsilon_dialogues
    for of_network, deterministic in zip(values, (False, True), strict=True):
        found, _ = policy.act(states, masks, deterministic, [Random(n) for n in range(2000)])
        expected = [chosen(of_network[int(state)], mask) for (state,), mask in zip(states, masks, strict=True)]
        assert found.tolist() == expected
    assert masks[np.arange(2000), found].all()
    none_left = ~masks[:, :6].any(axis=1)
    assert 100 < none_left.sum() < 1900
    flat = np.where(masks, np.array(values[1])[states[:, 0].astype(int), :13], -np.inf).argmax(axis=1)
    assert (flat != found).any()


def test_the_target_is_the_slow_value_of_the_worker_that_the_master_prefers():
    policy, learned, slow = tables()
    states, masks = random_turns(200)
    rewards, ended = torch.arange(200.0), torch.arange(200) % 4 == 3
    turns = {"next_observations": torch.from_numpy(states), "next_masks": torch.from_numpy(masks)}
    found = policy.targets(turns | {"rewards": rewards, "ended": ended}).tolist()
    for number, ((state,), mask) in enumerate(zip(states, masks, strict=True)):
        worker = 13 if chosen(learned[int(state)], mask) in REQUEST else 14
        follows = 0.0 if number % 4 == 3 else slow[int(state)][worker]
        assert found[number] == pytest.approx(number + 0.5 * follows, abs=1e-4)


def test_the_loss_is_that_of_the_action_and_of_the_master_and_teaches_a_worker_its_own_turns_only():
    policy, learned, _ = tables()
    states, masks = random_turns(32)
    actions = np.random.default_rng(1).integers(13, size=32)
    turns = {"observations": states, "actions": actions, "next_observations": states, "next_masks": masks}
    turns |= {"rewards": np.ones(32, np.float32), "ended": np.arange(32) % 2 == 0}
    turns = {name: torch.from_numpy(column) for name, column in turns.items()}
    policy.replay.turns = lambda *_: turns
    loss, _ = policy._loss(torch.Generator())
    total, expected = 0.0, np.zeros((5, 15))
    for (state,), action, target in zip(states, actions, policy.targets(turns).tolist(), strict=True):
        for column in (action, 13 if action in REQUEST else 14):
            error = learned[int(state)][column] - target
            total += error**2 / 32
            expected[int(state), column] += 2 * error / 32
    assert loss.item() == pytest.approx(total, rel=1e-5)
    loss.backward()
    np.testing.assert_allclose(policy.learner.policy.rows.grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_it_learns_to_serve_the_user_of_a_small_domain():
    policy, sampler = Feudal(SETTING, epsilon_dialogues=150), Sampler(tea, 0, 4)
    while policy.num_dialogues < 150:
        trained(policy, sampler, 1, turns=30)
    assert np.mean([one.success for one in run_dialogues(policy, tea, 9, range(100))]) > 0.85
