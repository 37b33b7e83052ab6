import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.runs.checkpoint import save_checkpoint
from rlhf_dialog.task_oriented.domains import load_domain
from rlhf_dialog.task_oriented.domains.domain import parse_domain
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.ppo import PPO
from rlhf_dialog.task_oriented.runs.checkpoint import (
    check_domain,
    load_policy_checkpoint,
    read_policy_agent,
    save_policy_agent,
)
from tests.parts.small_domain import DATA, small_domain

DOMAIN = small_domain()
IDENTITY = {"domain_hash": DOMAIN.hash, "seed": 0}
SETTINGS = {"domain": "tea.json", "error_rate": 0.1, "user": "friendly", "max_turns": 9, "policy": {"id": "ppo"}}


def policy(seed=0):
    return PPO(PolicySpec(3, 2, seed), hidden_sizes=(4,))


def saved(folder):
    state = {"iteration": 1, "identity": IDENTITY, "domain": DOMAIN.name, "own": [1, 2]}
    return save_checkpoint(folder, state, lambda target: policy().save(target) or {}, keep=2)


def edited():
    """The domain with another telephone number."""
    first, *others = DATA["entities"]
    return parse_domain(DATA | {"entities": [first | {"phone": "12"}, *others]}, "tea")


def test_what_is_saved_is_loaded(tmp_path):
    source, other = saved(tmp_path), policy(seed=1)
    state = load_policy_checkpoint(source, other, IDENTITY, DOMAIN)
    assert state["own"] == [1, 2]
    assert str(other.learner.state_dict()) == str(policy().learner.state_dict())
    assert (tmp_path / "latest").read_text(encoding="utf-8") == "iter_000001"


def test_another_domain_another_run_and_a_checkpoint_that_changed_on_disk_are_refused(tmp_path):
    source, other = saved(tmp_path), edited()
    with pytest.raises(UserError, match=r"an earlier state of it \(hash .*tea \(hash"):
        load_policy_checkpoint(source, policy(), {"domain_hash": other.hash, "seed": 0}, other)
    cups = parse_domain(DATA | {"name": "cups"}, "cups")
    other = parse_domain(DATA | {"name": "cups", "type": "bar"}, "cups")
    assert cups.hash == DOMAIN.hash
    with pytest.raises(UserError, match=r"the domain tea \(hash .*cups"):
        load_policy_checkpoint(source, policy(), {"domain_hash": other.hash, "seed": 0}, other)
    with pytest.raises(UserError, match=r"\n  seed: 0 -> 4"):
        load_policy_checkpoint(saved(tmp_path), policy(), IDENTITY | {"seed": 4}, DOMAIN)
    source = saved(tmp_path)
    weights = source / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(UserError, match=r"policy\.safetensors has changed since it was written"):
        load_policy_checkpoint(source, policy(), IDENTITY, DOMAIN)


def test_an_agent_says_what_it_is_for(tmp_path):
    save_policy_agent(tmp_path / "agent", policy(), SETTINGS, DOMAIN)
    agent = read_policy_agent(tmp_path / "agent")
    kept = {"domain": str(tmp_path / "agent" / "domain.json"), "policy": {"id": "ppo", "args": {}}}
    assert agent == SETTINGS | kept | {"domain_name": "tea", "domain_hash": DOMAIN.hash, "environment": None}
    check_domain(tmp_path, "tea", agent["domain_hash"], load_domain(kept["domain"]))
    with pytest.raises(UserError, match="an earlier state of it"):
        check_domain(tmp_path, agent["domain_name"], agent["domain_hash"], edited())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is not the agent of a dialogue policy"),
        ("{", "is damaged"),
        ("{}", "is damaged: KeyError"),
        ('{"format_version": 9}', "format version 9"),
    ],
)
def test_a_folder_that_holds_no_agent_is_refused(tmp_path, content, said):
    if content is not None:
        (tmp_path / "policy_agent.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        read_policy_agent(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        *({"policy": 3}, {"error_rate": "often"}, {"max_turns": 2.5}, {"user": [3]}, {"domain": ["restaurant"]}),
        *({"environment": "Guess"}, {"end_reward": "much", "domain": "multiwoz"}),
    ],
)
def test_an_agent_whose_settings_are_of_another_kind_is_damaged(tmp_path, change):
    save_policy_agent(tmp_path, policy(), SETTINGS, DOMAIN)
    path = tmp_path / "policy_agent.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(UserError, match=r"policy_agent\.json: is damaged"):
        read_policy_agent(tmp_path)
