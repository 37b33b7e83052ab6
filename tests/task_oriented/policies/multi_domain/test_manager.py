"""The manager: whose turn it is, what each policy gets, three domains, and how it goes on after a save."""

import numpy as np
import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.base import PolicyFactory, choose, stream
from rlhf_dialog.task_oriented.policies.handcrafted import HandcraftedMulti, RandomPolicy
from rlhf_dialog.task_oriented.policies.multi_domain.manager import Manager
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler
from rlhf_dialog.task_oriented.world.multi_domain.actions import MultiLayout
from tests.parts.several_policies import THREE, TWO, dialogue, make, piece, setting_of, straight_and_resumed, trained

SMALL = {"hidden_sizes": [8], "batch_size": 8}
MIXED = {
    "restaurant": {"id": "gp_sarsa", "args": {"sigma": 2.0}},
    "hotel": "handcrafted",
    "attraction": {"id": "dqn", "args": SMALL},
}


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


@pytest.mark.parametrize(
    "args", [{"policies": MIXED}, {"others": "gp_sarsa"}, {"policies": {"hotel": "a2c"}, "others": "random"}]
)
def test_it_goes_on_exactly(tmp_path, args):
    straight, resumed = straight_and_resumed(tmp_path, "manager", args)
    assert straight == resumed
    assert "policy.json" in straight
    assert any(name.startswith("hotel/") for name in straight) or args.get("policies") is MIXED


def test_turns_that_wait_for_the_end_are_saved_between_observe_and_update(tmp_path):
    one = dialogue(TWO, ["inform(hotel-area=north)"] * 2, ["hotel_recommend", "reqmore"], [-1.0, 19.0])
    policy = Manager(setting_of(TWO), others="gp_sarsa")
    policy.observe(one)
    policy.save(tmp_path)
    again = Manager(setting_of(TWO), others="gp_sarsa")
    again.load(tmp_path)
    assert again.update() == policy.update() != {}


def test_damage_is_named(tmp_path):
    with pytest.raises(UserError, match="holds no manager, or is damaged"):
        Manager(setting_of(TWO)).load(tmp_path)
    for text in ("[]", '{"num_updates": "two", "taught": []}', '{"num_updates": 2, "taught": [[]]}'):
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
