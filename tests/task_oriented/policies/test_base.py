import numpy as np
import pytest
import torch
from pydantic.dataclasses import dataclass

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.arguments import STRICT, Sizes, constant, ranged, read_arguments
from rlhf_dialog.task_oriented.policies.base import PolicyFactory, PolicySpec, choose, stream
from rlhf_dialog.task_oriented.policies.built_in import BUILT_IN, build_policy
from rlhf_dialog.task_oriented.policies.handcrafted import HandcraftedMulti
from rlhf_dialog.task_oriented.policies.network import NetworkPair, categorical, load_networks, mlp, save_networks
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from rlhf_dialog.task_oriented.world.summary import Layout, action_names
from tests.parts.several_policies import TWO, setting_of, trained
from tests.parts.small_domain import small_domain
from tests.parts.small_world import small_world
from tests.parts.toy_environments import Colours, best

OBSERVATIONS, MASKS = np.zeros((2, 3), np.float32), np.array([[False, True], [True, True]])


class First:
    def act(self, observations, masks, deterministic):
        return masks.argmax(axis=1), {}


class Drawing:
    def act(self, observations, masks, deterministic, streams):
        return [deterministic, *streams], {}


def test_only_a_policy_that_draws_gets_the_streams_and_each_turn_of_each_dialogue_has_its_own():
    assert choose(First(), OBSERVATIONS, MASKS, False, [])[0].tolist() == [1, 0]
    assert choose(Drawing(), OBSERVATIONS, MASKS, True, [3, 4])[0] == [True, 3, 4]
    keys = [(0, 5, 1), (0, 5, 2), (0, 6, 1), (1, 5, 1), (0, 5, 1)]
    assert len({stream(*key).random() for key in keys}) == 4


@dataclass(frozen=True, config=STRICT)
class Parent:
    share: float = ranged(0.5, 0.0, 1.0)
    rows: int = ranged(8, 1, 100)
    hidden_sizes: Sizes = (4, 2)


@dataclass(frozen=True, config=STRICT)
class Child(Parent):
    rows: int = constant(3)
    share: float = ranged(0.1, 0.1, 2.0)


def test_defaults_and_what_is_given():
    assert Parent() == Parent(0.5, 8, (4, 2))
    assert read_arguments(Parent, {"share": 1, "rows": 100, "hidden_sizes": [7]}) == Parent(1.0, 100, [7])
    assert (
        read_arguments(Parent, {"share": 0, "rows": 1, "hidden_sizes": [1, 10**5]}).rows == 1
    )  # the bounds themselves
    assert (Child().share, Child().rows, read_arguments(Child, {"share": 2}).share) == (0.1, 3, 2)
    with pytest.raises(UserError, match=r"policy\.args\.rows.* Known: share, hidden_sizes$"):
        read_arguments(Child, {"rows": 3})


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("ppo", {"hidden_sizes": (128, 64), "gae_lambda": 0.95, "clip_param": 0.2, "entropy_coef": 0.01}),
        ("gp_sarsa", {"kernel": "polysort", "gamma": 1.0, "sigma": 5.0, "nu": 0.001, "relative_nu": 0.02}),
        ("dqn", {"hidden_sizes": (300, 100), "gamma": 0.99, "capacity": 6000, "batch_size": 64}),
        ("dqn", {"steps_per_dialogue": 2.0, "epsilon": 0.3, "epsilon_dialogues": 1000, "target_share": 0.02}),
        ("bbqn", {"prior_sigma": 0.2, "initial_sigma": 0.02, "noise_sigma": 1.0, "kl_coef": 0.01}),
        ("feudal", {"hidden_sizes": (130, 50)}),
        ("acer", {"truncation": 5.0, "trust": 1.0, "average_share": 0.05, "entropy_coef": 0.01, "lr": 1e-3}),
        ("a2c", {"hidden_sizes": (200, 75), "td_lambda": 0.95, "truncation": 1.0, "lr": 5e-4, "batch_size": 16}),
        ("tracer", {"trust": 0.01, "average_share": 0.05}),
        ("enac", {"hidden_sizes": (130, 50), "max_kl": 0.05, "ridge": 0.1, "batch_size": 64, "capacity": 6400}),
    ],
)
def test_the_defaults_are_those_of_the_papers(name, defaults):
    args = build_policy(name, {}, SETTING).args
    assert {key: getattr(args, key) for key in defaults} == defaults


DOMAIN = small_domain()
SETTING = PolicySpec(Layout(DOMAIN).size, len(action_names(DOMAIN)), domain=DOMAIN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_policy_has_all_of_the_protocol_and_loads_what_it_saves(name, tmp_path):
    assert PolicyFactory.find(name) is not None
    policy = build_policy(name, {}, SETTING)
    assert policy.save(tmp_path) is None
    again = build_policy(name, {}, SETTING)
    again.load(tmp_path)
    assert all(callable(getattr(again, method)) for method in ("act", "observe", "update"))
    assert isinstance(build_policy("handcrafted", {}, PolicySpec(5, 3, domain=small_world())), HandcraftedMulti)


def learner(seed=0, width=4):
    generator = torch.Generator().manual_seed(seed)
    return NetworkPair(mlp([3, width, 2], generator, 0.01), mlp([3, width, 1], generator, 1.0), lr=0.1)


def test_the_weights_follow_from_the_seed_and_nothing_else():
    one = learner().state_dict()
    torch.manual_seed(6)
    assert all(torch.equal(x, one[name]) for name, x in learner().state_dict().items())
    assert not torch.equal(learner(1).policy[0].weight, one["policy.0.weight"])
    assert [type(layer).__name__ for layer in learner().policy] == ["Linear", "Tanh", "Linear"]
    assert learner().policy[2].weight.norm(dim=1).tolist() == pytest.approx([0.01, 0.01])  # orthogonal, with this gain
    assert learner().critic[0].weight.norm(dim=0).tolist() == pytest.approx([2**0.5] * 3)
    assert learner().optimizer.defaults["eps"] == 1e-5


@pytest.mark.parametrize(
    ("draw", "action"), [(0.0, 1), (0.19, 1), (0.21, 2), (0.69, 2), (0.71, 4), (0.9999999999999999, 4)]
)
def test_one_number_draws_an_action_by_its_share(draw, action):
    logprobs = torch.tensor([[-1e9, np.log(0.2), np.log(0.5), -1e9, np.log(0.3), -1e9]])
    assert categorical(logprobs, [draw]).tolist() == [action]
    assert categorical(torch.full((2, 2), 0.5).log(), [0.1, 0.9]).tolist() == [0, 1]


def test_a_step_clips_each_network_by_itself():
    one, x = learner(), torch.ones(1, 3)
    (expected,) = torch.autograd.grad(1e3 * one.policy[2].weight.sum(), [one.policy[2].weight])
    norm = one.step(1e3 * one.policy[2].weight.sum() + 1e-3 * one.critic(x).sum(), 0.5)
    assert norm == pytest.approx(expected.norm().item())
    assert one.policy[2].weight.grad.norm().item() == pytest.approx(0.5)
    assert one.critic[2].bias.grad.item() == pytest.approx(1e-3)
    one.step(1e-3 * one.policy(x).sum() + 1e3 * one.critic[2].weight.sum(), 0.5)
    assert one.policy[2].bias.grad.tolist() == pytest.approx([1e-3, 1e-3])
    assert one.critic[2].weight.grad.norm().item() == pytest.approx(0.5)


def test_what_is_saved_goes_on_exactly_and_files_of_another_size_are_refused(tmp_path):
    one, other = learner(), learner(seed=9)
    for _ in range(3):
        one.step(one.policy(torch.ones(1, 3)).sum() + one.critic(torch.ones(1, 3)).sum(), 0.5)
    save_networks(one, tmp_path, {"count": 3})
    assert load_networks(other, tmp_path) == {"count": 3}
    for each in (one, other):
        each.step(each.policy(torch.ones(1, 3)).sum(), 0.5)
    assert all(torch.equal(x, other.state_dict()[name]) for name, x in one.state_dict().items())
    save_networks(learner(), tmp_path, {})
    with pytest.raises(UserError, match="does not fit"):
        load_networks(learner(width=5), tmp_path)
    (tmp_path / "policy.safetensors").write_bytes(b"no weights")
    with pytest.raises(UserError, match="is damaged"):
        load_networks(learner(), tmp_path)


ONE_LAYER = {"hidden_sizes": (32,), "lr": 5e-3}
SLOW = {"hidden_sizes": (32,), "lr": 3e-3}
LEARNERS = {  # its arguments, how often it learns from how many turns, and how often it is right in the end
    "a2c": (ONE_LAYER | {"importance_weights": False}, 30, 48, 0.85),
    "a2c with importance weights": (ONE_LAYER | {"importance_weights": True}, 30, 48, 0.85),
    "tracer": (ONE_LAYER, 30, 48, 0.85),
    "acer": (SLOW, 16, 96, 0.85),
    "enac": ({"hidden_sizes": (16,), "steps_per_dialogue": 0.125}, 30, 48, 0.75),
    "dqn": (SLOW | {"epsilon_dialogues": 300, "target_share": 0.05}, 15, 96, 0.9),
    "bbqn": (SLOW | {"target_share": 0.05}, 12, 96, 0.9),
    "ppo": ({"hidden_sizes": (32,), "lr": 1e-2, "entropy_coef": 0.0, "minibatch_size": 64}, 25, 256, 0.99),
    "gp_sarsa": ({"kernel": "poly", "sigma": 2.0, "prior_deviation": 5.0}, 50, 24, 0.95),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_it_learns_the_right_masked_policy_of_a_toy(name):
    arguments, times, turns, share = LEARNERS[name]
    policy, sampler = build_policy(name.split()[0], arguments, PolicySpec(3, 4)), Sampler(Colours, 0, 8)
    trained(policy, sampler, times, turns)
    episodes = run_dialogues(policy, Colours, 99, range(60))
    right = np.concatenate([one.actions == best(one.observations, one.masks) for one in episodes])
    assert right.mean() > share


FREE, SEVERAL = PolicySpec(7, 2), setting_of(TWO)
HOTEL = ("policies.hotel",)


@pytest.mark.parametrize(
    ("name", "args", "setting", "words"),
    [
        ("pppo", {}, FREE, ("'pppo'", "'ppo'")),
        ("ppo", {"lrr": 1}, FREE, ("policy.args.lrr", "'lr'")),
        ("ppo", {"setting": 1}, FREE, ("'setting'",)),
        ("ppo", {"lr": 1.5}, FREE, ("policy.args.lr", "1.5", "less than or equal to 1")),
        ("ppo", {"gamma": -1}, FREE, ("policy.args.gamma", "-1")),
        ("ppo", {"gamma": float("nan")}, FREE, ("policy.args.gamma", "nan")),
        ("ppo", {"gamma": True}, FREE, ("policy.args.gamma", "True")),
        ("ppo", {"gamma": "1"}, FREE, ("policy.args.gamma", "'1'")),
        ("ppo", {"ppo_epoch": 2.0}, FREE, ("policy.args.ppo_epoch", "2.0")),
        ("ppo", {"ppo_epoch": 0}, FREE, ("policy.args.ppo_epoch", "0", "greater than or equal to 1")),
        ("ppo", {"hidden_sizes": "64"}, FREE, ("policy.args.hidden_sizes", "'64'")),
        ("ppo", {"hidden_sizes": [64, 0]}, FREE, ("policy.args.hidden_sizes", "[64, 0]")),
        ("ppo", {"hidden_sizes": [10**5 + 1]}, FREE, ("policy.args.hidden_sizes",)),
        ("ppo", {"hidden_sizes": [True]}, FREE, ("policy.args.hidden_sizes", "[True]")),
        ("handcrafted", {}, FREE, ("handcrafted", "domain")),
        ("gp_sarsa", {"sigma": 0}, FREE, ("policy.args.sigma", "0")),
        ("gp_sarsa", {"kernel": "poly sort"}, FREE, ("policy.args.kernel", "'poly sort'", "polysort")),
        ("gp_sarsa", {"action_kernel": "same"}, FREE, ("policy.args.action_kernel", "'same'", "delta")),
        ("gp_sarsa", {"action_kernel": "handcrafted"}, FREE, ("policy.args.action_kernel", "a domain")),
        ("gp_sarsa", {"blocks": [4, 4]}, FREE, ("policy.args.blocks", "[4, 4]", "7 columns")),
        ("gp_sarsa", {"blocks": [8, -1]}, FREE, ("policy.args.blocks", "[8, -1]")),
        ("gp_sarsa", {"blocks": ["7"]}, FREE, ("policy.args.blocks", "['7']")),
        ("gp_sarsa", {"blocks": {7: 1}}, FREE, ("policy.args.blocks", "{7: 1}")),
        ("gp_sarsa", {"prior": ["a"]}, FREE, ("policy.args.prior", "['a']")),
        ("feudal", {}, FREE, ("feudal", "none")),
        ("feudal", {}, PolicySpec(5, 3, domain=small_world()), ("feudal", "several")),
        ("feudal", {}, PolicySpec(38, 13, domain=DOMAIN), ("feudal", "others")),
        ("feudal", {}, PolicySpec(37, 12, domain=DOMAIN), ("feudal", "others")),
        ("committee", {}, PolicySpec(5, 3, domain=DOMAIN), ("committee", "several domains")),
        ("committee", {}, PolicySpec(5, 3, domain=TWO), ("committee", "several domains")),
        ("committee", {"members": ["hotels"]}, SEVERAL, ("policy.args.members", "'hotels'", "'hotel'")),
        ("committee", {"members": []}, SEVERAL, ("policy.args.members", "[]")),
        ("committee", {"members": ["hotel", "hotel"]}, SEVERAL, ("policy.args.members", "each domain once")),
        ("committee", {"members": 3}, SEVERAL, ("policy.args.members", "3")),
        ("committee", {"learning": "all"}, SEVERAL, ("policy.args.learning", "'all'", "'evidence'")),
        ("manager", {}, FREE, ("manager", "several domains")),
        ("manager", {"policies": {"hotels": "random"}}, SEVERAL, ("policy.args.policies", "'hotels'", "'hotel'")),
        ("manager", {"policies": {"hotel": "gp_sarsaa"}}, SEVERAL, (*HOTEL, "'gp_sarsaa'", "'gp_sarsa'")),
        ("manager", {"policies": {"hotel": {"id": "dqn", "args": {"lrr": 1}}}}, SEVERAL, (*HOTEL, "'lr'")),
        ("manager", {"policies": "dqn"}, SEVERAL, ("policy.args.policies", "'dqn'")),
        ("manager", {"policies": {"hotel": {"id": None}}}, SEVERAL, (*HOTEL, "{'id': None}")),
        ("manager", {"policies": {"hotel": {"id": "dqn", "args": []}}}, SEVERAL, (*HOTEL, "found")),
        ("manager", {"policies": {"hotel": {"id": "dqn", "args": {"setting": 3}}}}, SEVERAL, (*HOTEL, "'setting'")),
        ("manager", {"others": 3}, SEVERAL, ("policies.hotel", "found 3")),
    ],
)
def test_a_mistake_is_named(name, args, setting, words):
    asked = np.zeros((1, 7), np.float32), np.ones((1, 2), bool), True
    with pytest.raises(UserError) as raised:
        build_policy(name, args, setting).act(*asked)  # an earlier policy is read when it is needed
    assert [word for word in words if word not in str(raised.value)] == []
