import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.base import PolicyFactory, PolicySpec
from rlhf_dialog.task_oriented.policies.built_in import BUILT_IN, build_policy, load_policy
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted, HandcraftedMulti
from rlhf_dialog.task_oriented.world.summary import Layout, action_names
from tests.parts.small_domain import small_domain
from tests.parts.small_world import small_world

DOMAIN = small_domain()
SETTING = PolicySpec(Layout(DOMAIN).size, len(action_names(DOMAIN)), domain=DOMAIN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_policy_has_all_of_the_protocol_and_loads_what_it_saves(name, tmp_path):
    assert PolicyFactory.find(name) is not None
    policy = build_policy(name, {}, SETTING)
    assert policy.save(tmp_path) is None
    again = load_policy(name, {}, SETTING, tmp_path)
    assert all(callable(getattr(again, method)) for method in ("act", "observe", "update"))


def test_the_handcrafted_policy_needs_a_domain():
    assert isinstance(build_policy("handcrafted", {}, SETTING), Handcrafted)
    with pytest.raises(UserError, match="its rules need a domain"):
        build_policy("handcrafted", {}, PolicySpec(5, 3))


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("pppo", {}, "unknown policy 'pppo'; did you mean 'ppo'"),
        ("ppo", {"lrr": 1}, "wrong arguments for ppo: .*did you mean 'lr'"),
        ("ppo", {"setting": 1}, "leave 'setting' out"),
        ("ppo", {"lr": 0}, r"policy\.args\.lr: found 0, wanted a number from 1e-09 to 1"),
        ("ppo", {"gamma": "high"}, r"policy\.args\.gamma: found 'high', wanted a number from 0 to 1"),
        ("ppo", {"ppo_epoch": 1.5}, r"policy\.args\.ppo_epoch: found 1.5, wanted a whole number from 1"),
        ("ppo", {"hidden_sizes": "64"}, r"policy\.args\.hidden_sizes: found '64', wanted a list of numbers"),
        ("ppo", {"hidden_sizes": [64, 0]}, r"policy\.args\.hidden_sizes: found \[64, 0\]"),
    ],
)
def test_a_mistake_is_named(name, args, said):
    with pytest.raises(UserError, match=said):
        build_policy(name, args, SETTING)


def test_the_handcrafted_policy_of_several_domains():
    assert isinstance(build_policy("handcrafted", {}, PolicySpec(5, 3, domain=small_world())), HandcraftedMulti)
