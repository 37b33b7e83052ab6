"""The policies of this package by name; `rlhf_dialog/wings.py` says where each one is."""

from typing import Any

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import MultiDomain
from rlhf_dialog.task_oriented.policies.base import DialoguePolicy, PolicyFactory, PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted, HandcraftedMulti

BUILT_IN = ("ppo", "gp_sarsa", "dqn", "bbqn", "feudal", "acer", "a2c", "tracer", "enac", "random", "handcrafted")


@PolicyFactory.register("handcrafted")
def build_handcrafted(setting: PolicySpec) -> Handcrafted | HandcraftedMulti:
    """The rules for the setting's domain, or for several. Raises UserError without a domain."""
    if setting.domain is None:
        raise UserError("policy handcrafted: its rules need a domain; choose another policy")
    return HandcraftedMulti(setting.domain) if isinstance(setting.domain, MultiDomain) else Handcrafted(setting.domain)


def build_policy(name: str, args: dict[str, Any], setting: PolicySpec) -> DialoguePolicy:
    """The registered policy. Raises UserError for an unknown name or wrong arguments."""
    if "setting" in args:
        raise UserError("policy.args: leave 'setting' out; the run gives it")
    policy: DialoguePolicy = PolicyFactory.create(name, {"setting": setting, **args})
    return policy
