"""What a policy is not built with: each message names the argument and what was found."""

import numpy as np
import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.built_in import build_policy
from tests.parts.several_policies import TWO, setting_of
from tests.parts.small_domain import small_domain
from tests.parts.small_world import small_world

FREE, SEVERAL, DOMAIN = PolicySpec(7, 2), setting_of(TWO), small_domain()
HOTEL = ("policies.hotel",)


@pytest.mark.parametrize(
    ("name", "args", "setting", "words"),
    [
        ("pppo", {}, FREE, ("'pppo'", "'ppo'")),
        ("ppo", {"lrr": 1}, FREE, ("ppo", "'lr'")),
        ("ppo", {"setting": 1}, FREE, ("'setting'",)),
        ("ppo", {"lr": 1.5}, FREE, ("policy.args.lr", "1.5", "from 1e-09 to 1")),
        ("ppo", {"gamma": -1}, FREE, ("policy.args.gamma", "-1")),
        ("ppo", {"gamma": float("nan")}, FREE, ("policy.args.gamma", "nan")),
        ("ppo", {"gamma": True}, FREE, ("policy.args.gamma", "True")),
        ("ppo", {"gamma": "1"}, FREE, ("policy.args.gamma", "'1'")),
        ("ppo", {"ppo_epoch": 2.0}, FREE, ("policy.args.ppo_epoch", "2.0")),
        ("ppo", {"ppo_epoch": 0}, FREE, ("policy.args.ppo_epoch", "0", "from 1")),
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
        ("committee", {"members": ["hotel", "hotel"]}, SEVERAL, ("policy.args.members", "once")),
        ("committee", {"members": 3}, SEVERAL, ("policy.args.members", "3")),
        ("committee", {"learning": "all"}, SEVERAL, ("learning", "'all'", "evidence, reward, own")),
        ("manager", {}, FREE, ("manager", "several domains")),
        ("manager", {"policies": {"hotels": "random"}}, SEVERAL, ("policy.args.policies", "'hotels'", "'hotel'")),
        ("manager", {"policies": {"hotel": "gp_sarsaa"}}, SEVERAL, (*HOTEL, "'gp_sarsaa'", "'gp_sarsa'")),
        ("manager", {"policies": {"hotel": {"id": "dqn", "args": {"lrr": 1}}}}, SEVERAL, (*HOTEL, "dqn")),
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
