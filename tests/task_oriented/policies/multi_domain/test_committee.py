import json

import numpy as np
import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.base import PolicyFactory, choose, stream
from rlhf_dialog.task_oriented.policies.built_in import build_policy
from rlhf_dialog.task_oriented.policies.handcrafted import HandcraftedMulti, RandomPolicy
from rlhf_dialog.task_oriented.policies.multi_domain.committee import Committee, combine_opinions
from rlhf_dialog.task_oriented.policies.multi_domain.manager import Manager
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from rlhf_dialog.task_oriented.world.multi_domain.actions import MultiLayout
from tests.parts.several_policies import THREE, TWO, dialogue, make, piece, setting_of, straight_and_resumed, trained
from tests.parts.small_world import small_world

NORTH, HOTEL = "inform(hotel-area=north)", "hotel/policy.safetensors"
MIXED = {
    "restaurant": {"id": "gp_sarsa", "args": {"sigma": 2.0}},
    "hotel": "handcrafted",
    "attraction": {"id": "dqn", "args": {"hidden_sizes": [8], "batch_size": 8}},
}


def test_the_combination_by_hand():
    means_, variances = [[5.0, -1.0], [2.0, 8.0], [4.0, 3.0]], [[4.0, 10.0], [2.0, 10.0], [8.0, 10.0]]
    # (5/4 + 2/2 + 4/8 - .6) / (1/4 + 1/2 + 1/8 - .2), and three members who know nothing: the sum of their means - .6, over .1
    expected = [(2.15 / 0.675, 1 / 0.675), ((1.0 - 0.6) / 0.1, 1 / 0.1)]
    found = combine_opinions(np.array(means_)[:, None], np.array(variances)[:, None], 3.0, 10.0)
    np.testing.assert_allclose(np.stack(found)[:, 0].T, expected)
    # members that know nothing give the prior back
    policy = Committee(setting_of(THREE), prior_mean=7.0, prior_deviation=3.0)
    episodes = run_dialogues(RandomPolicy(setting_of(THREE)), make(THREE), 0, range(4))
    opinions = policy.opinions(np.concatenate([one.observations for one in episodes]))
    assert len(opinions[0]) == 3
    mean, variance = combine_opinions(*opinions[:2], 7.0, 9.0)
    np.testing.assert_allclose(mean, 7.0)
    np.testing.assert_allclose(variance, 9.0)


def taught(learning, weights=(0.75, 0.25), pay=(-1.0, 17.0)):
    """A committee that learned one dialogue about hotels; the first member is the hotels'."""
    extras = {"weights": np.array([weights] * 2, np.float32)}
    policy = Committee(setting_of(TWO), learning=learning, nu=0.0, relative_nu=0.0)
    policy.observe(dialogue(TWO, [NORTH] * 2, ["hotel_recommend", "reqmore"], pay, 0, extras))
    policy.update()
    return policy


def alone(weights, rewards):
    """The restaurants' member, taught by itself."""
    policy = Committee(setting_of(TWO), nu=0.0, relative_nu=0.0)
    view, member = policy.views.by_name["restaurant"], policy.members["restaurant"]
    one = dialogue(TWO, [NORTH] * 2, ["hotel_recommend", "reqmore"], rewards)
    names = MultiLayout(TWO.only(["restaurant"])).names
    seen = policy.bridges["restaurant", "hotel"].observations(one.observations)
    one.observations, one.actions = seen, np.array([names.index("restaurant_recommend"), names.index("reqmore")])
    one.extras = {"weights": np.array(weights, np.float32)}
    member.observe(one)
    member.update()
    return member, view, seen


@pytest.mark.parametrize(
    ("learning", "weights", "rewards"),
    [("evidence", (0.25, 0.25), (-1.0, 17.0)), ("reward", (1.0, 1.0), (-0.25, 4.25))],
)
def test_a_member_learns_from_another_domain_in_proportion_to_its_part(learning, weights, rewards):
    member, _, seen = alone(weights, rewards)
    found = taught(learning).members["restaurant"].posterior(seen)
    np.testing.assert_allclose(found, member.posterior(seen))
    number = MultiLayout(TWO.only(["restaurant"])).names.index("restaurant_recommend")
    assert found[1][0, number] < 400 - 1


def test_the_parts_are_shares_of_the_precision_and_only_of_those_who_know_the_action():
    world = small_world().only(["hotel", "attraction"])  # attractions cannot be booked
    policy = Committee(setting_of(world))
    names = list(MultiLayout(world).names)
    acts = ["hotel_recommend", "hotel_request_booking"]
    one = dialogue(world, [NORTH] * 2, acts, [-1.0, 17.0])
    first = policy._weights(one.observations, one.actions, policy.opinions(one.observations)[1])
    assert list(policy.members) == ["attraction", "hotel"]
    np.testing.assert_allclose(first, [[0.5, 0.5], [0.0, 1.0]])
    policy.observe(one)
    policy.update()
    variances = policy.opinions(one.observations)[1][:, 0, names.index("hotel_recommend")]
    later = policy._weights(one.observations, one.actions, policy.opinions(one.observations)[1])
    assert later[0, 0] == pytest.approx((1 / variances[0]) / (1 / variances[0] + 1 / variances[1]), rel=1e-6)
    own = Committee(setting_of(world), learning="own")
    found = own._weights(one.observations, one.actions, own.opinions(one.observations)[1])
    np.testing.assert_array_equal(found, [[0, 1], [0, 1]])


def test_what_hotels_taught_counts_for_restaurants_and_for_a_domain_without_a_member():
    policy = Committee(setting_of(THREE), members=["hotel"])
    for number in range(6):
        policy.observe(dialogue(THREE, [NORTH] * 2, ["reqmore", "hotel_recommend"], [-1.0, 17.0], number))
    policy.update()
    names = list(MultiLayout(THREE).names)
    for domain in ("restaurant", "attraction"):
        one = dialogue(THREE, [f"inform({domain}-area=north)"], [f"{domain}_recommend"], [-1.0])
        mean, variance, possible = policy.opinions(one.observations)
        number = names.index(f"{domain}_recommend")
        assert mean[0, 0, number] > 10
        assert variance[0, 0, number] < 100
        assert {names[n] for n in np.flatnonzero(possible[0])} == {n for n in names if domain in n} | {"reqmore", "bye"}
        action, extras = policy.act(one.observations, one.masks, deterministic=True)
        assert (names[action[0]], extras["weights"].tolist()) == (f"{domain}_recommend", [[1.0]])


@pytest.mark.parametrize(("scale", "deterministic"), [(-1, False), (0.3, False), (3.0, False), (3.0, True)])
def test_an_action_is_the_best_of_mean_plus_scale_times_deviation_times_a_normal_number(scale, deterministic):
    policy = Committee(setting_of(TWO), scale=scale, sigma=15.0)
    assert policy.members["hotel"].args.sigma == 15.0
    trained(policy, Sampler(make(TWO), 5, 2), 10)
    episodes = run_dialogues(RandomPolicy(setting_of(TWO)), make(TWO), 1, range(10))
    asked, masks = (np.concatenate([getattr(one, name) for one in episodes]) for name in ("observations", "masks"))
    means_, variances, possible = policy.opinions(asked)
    mean, variance = combine_opinions(means_, variances, 0.0, 400.0)
    expected, share = [], 0.0 if deterministic else max(scale, 0)
    for row in range(len(asked)):
        draws = stream(1, row, 0)
        worth = [m + share * v**0.5 * draws.gauss(0.0, 1.0) for m, v in zip(mean[row], variance[row], strict=True)]
        expected.append(max(np.flatnonzero(masks[row] & possible[row]).tolist(), key=worth.__getitem__))
    actions, extras = policy.act(asked, masks, deterministic, [stream(1, row, 0) for row in range(len(asked))])
    assert actions.tolist() == expected
    np.testing.assert_allclose(extras["values"], mean[range(len(asked)), actions], rtol=1e-6)
    precisions = 1 / variances[:, range(len(asked)), actions].T  # both members know all actions
    np.testing.assert_allclose(extras["weights"], precisions / precisions.sum(axis=1, keepdims=True), rtol=1e-6)
    assert extras["weights"].max() > 0.51


def test_a_cut_dialogue_is_learned_whole():
    setting = setting_of(TWO)
    episodes = [one for one in run_dialogues(RandomPolicy(setting), make(TWO), 2, range(8)) if len(one) > 3]
    whole, cut = Committee(setting), Committee(setting)
    for one in episodes:
        one.extras = {}
        whole.observe(one)
        for first, last in ((0, 1), (1, 3), (3, len(one))):
            cut.observe(piece(one, first, last))
    assert whole.update() == cut.update()
    assert sum(member.num_points for member in whole.members.values()) > 10


@pytest.mark.parametrize(
    ("name", "args", "files"),
    [
        pytest.param("committee", {}, {"abstraction.json", "replay.safetensors", HOTEL}, marks=pytest.mark.slow),
        ("manager", {"policies": MIXED}, {"policy.json"}),
        ("manager", {"others": "gp_sarsa"}, {"policy.json", HOTEL}),
        ("manager", {"policies": {"hotel": "a2c"}, "others": "random"}, {"policy.json", HOTEL}),
    ],
)
def test_it_goes_on_exactly(tmp_path, name, args, files):
    pair = straight_and_resumed(tmp_path, lambda _: build_policy(name, args, setting_of(THREE)), make(THREE), 3, 16)
    (_, straight), (_, resumed) = pair
    assert straight == resumed
    assert files < set(map(str, straight))


def test_the_abstraction_is_saved_and_comes_back(tmp_path):
    path = tmp_path / "mine.json"
    mine = {"restaurant": {"food": "x"}, "hotel": {"stars": "x"}}
    path.write_text(json.dumps(mine), encoding="utf-8")
    policy = Committee(setting_of(TWO), abstraction=str(path))
    policy.save(tmp_path)
    path.unlink()
    other = Committee(setting_of(TWO))
    assert other.abstraction != mine
    other.load(tmp_path)
    assert other.abstraction == mine
    with pytest.raises(UserError, match="does not fit this policy"):
        Committee(setting_of(TWO), sigma=1.0).load(tmp_path)


@pytest.fixture
def noted(monkeypatch):
    """A policy that takes the first allowed action and notes what it sees."""
    built = []

    class Noting(RandomPolicy):
        def __init__(self, setting):
            super().__init__(setting)
            self.episodes, self.seen, self.updates = [], [], 0
            built.append(self)

        def act(self, observations, masks, deterministic=False):
            self.seen.append(observations)
            return masks.argmax(axis=1), {
                "logprobs": np.full(len(masks), -1.5, np.float32),
                "twice": 2 * observations[:, :3],
            }

        def observe(self, episode):
            self.episodes.append(episode)

        def update(self):
            self.updates += 1
            return {"updates": float(self.updates)}

    monkeypatch.setattr(PolicyFactory, "classes", {**PolicyFactory.classes, "noting": Noting})
    return built


def test_each_domain_has_its_policy_and_sees_itself_alone(noted):
    policy = Manager(setting_of(THREE), {"hotel": "noting", "restaurant": {"id": "noting"}})
    users = ["inform(restaurant-food=thai)", "inform(hotel-area=north)", "inform(attraction-area=north)"]
    one = dialogue(THREE, users, ["reqmore"] * 3, [-1.0] * 3)
    names, restaurant, hotel = MultiLayout(THREE).names, policy.policies["restaurant"], policy.policies["hotel"]
    actions, extras = policy.act(one.observations, one.masks, True, [])
    rules = HandcraftedMulti(THREE.only(["attraction"]))
    attraction = policy.views.by_name["attraction"]
    theirs, _ = rules.act(one.observations[2:, attraction.columns], one.masks[2:, attraction.actions])
    assert names[actions[0]] == "restaurant_request"
    assert names[actions[1]] == "hotel_request"
    assert actions[2] == attraction.actions[theirs[0]]
    np.testing.assert_array_equal(restaurant.seen[-1], one.observations[:1, policy.views.by_name["restaurant"].columns])
    np.testing.assert_array_equal(hotel.seen[-1], one.observations[1:2, policy.views.by_name["hotel"].columns])
    assert extras["logprobs"].tolist() == [-1.5, -1.5, 0.0]
    np.testing.assert_array_equal(extras["hotel/twice"], [[0] * 3, 2 * hotel.seen[-1][0, :3], [0] * 3])


def test_each_policy_learns_from_its_turns_and_only_where_there_are_some(noted):
    policy = Manager(setting_of(THREE), others="noting")
    users = ["inform(restaurant-food=thai)", "inform(restaurant-food=thai)", "inform(hotel-area=north)"]
    one = dialogue(THREE, users, ["restaurant_recommend", "reqmore", "hotel_recommend"], [-1.0, -2.0, 19.0])
    _, one.extras = policy.act(one.observations, one.masks, True, [])
    policy.observe(piece(one, 0, 2))
    assert policy.update() == {}
    policy.observe(piece(one, 2, 3))
    assert policy.update() == {"hotel/updates": 1.0, "restaurant/updates": 1.0}
    (found,) = policy.policies["restaurant"].episodes
    names = MultiLayout(THREE.only(["restaurant"])).names
    assert ([names[n] for n in found.actions], found.rewards.tolist()) == (
        ["restaurant_recommend", "reqmore"],
        [-1, 17],
    )
    np.testing.assert_array_equal(found.extras["twice"], 2 * found.observations[:, :3])
    assert (set(found.extras), found.masks.shape, found.ended) == ({"twice"}, (2, len(names)), True)
    assert policy.policies["attraction"].episodes == []
    assert len(policy.policies["hotel"].episodes) == 1


def test_ppo_gets_what_it_has_just_drawn():
    args = {"id": "ppo", "args": {"hidden_sizes": [8], "minibatch_size": 16, "ppo_epoch": 2}}
    policy = Manager(setting_of(TWO), others=args)
    trained(policy, Sampler(make(TWO), 0, 4), 6, turns=48)  # RunStopped, if a turn were of an earlier policy
    assert policy.policies["hotel"].num_updates > 3


def test_turns_that_wait_for_the_end_are_saved_between_observe_and_update(tmp_path):
    one = dialogue(TWO, ["inform(hotel-area=north)"] * 2, ["hotel_recommend", "reqmore"], [-1.0, 19.0])
    policy = Manager(setting_of(TWO), others="gp_sarsa")
    policy.observe(one)
    policy.save(tmp_path)
    again = Manager(setting_of(TWO), others="gp_sarsa")
    again.load(tmp_path)
    assert again.update() == policy.update() != {}


def test_damage_is_named(tmp_path):
    for text in ("", "[]", '{"num_updates": "two", "taught": []}', '{"num_updates": 2, "taught": [[]]}'):
        (tmp_path / "policy.json").write_text(text)
        with pytest.raises(UserError, match="holds no manager, or is damaged"):
            Manager(setting_of(TWO)).load(tmp_path)


def test_a_turn_draws_from_its_own_stream():
    policy = Manager(setting_of(TWO), others="random")
    one = dialogue(TWO, ["inform(hotel-area=north)", "inform(restaurant-food=thai)"] * 3, ["reqmore"] * 6, [-1.0] * 6)
    together, _ = choose(policy, one.observations, one.masks, False, [stream(0, 1, n) for n in range(6)])
    for row in range(6):
        alone, _ = choose(policy, one.observations[row : row + 1], one.masks[row : row + 1], False, [stream(0, 1, row)])
        assert alone[0] == together[row]
