"""The settings of a policy's run: mistakes with their key, the run's name, and what makes a run the same run."""

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.runs.settings import PolicyConfig, load_policy_config


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batchsize": 1}, "batchsize: unknown key; did you mean 'batchsz'"),
        ({"error_rate": 1.5}, "error_rate: found 1.5, wanted less than or equal to 1"),
        ({"epoch": 0}, "epoch: found 0"),
        ({"batchsz": 4}, "batchsz: 4 turns are fewer than num_envs: 8 dialogues"),
        ({"imitation_dialogues": 3, "policy": {"id": "random"}}, "only ppo imitates, found policy 'random'"),
        (
            {"step_timeout_s": 5},
            "step_timeout_s: limits an environment of your own, or processes; set environment or process_num",
        ),
        ({"wrong_rewards": 1.5}, "wrong_rewards: found 1.5, wanted less than or equal to 1"),
        ({"wrong_rewards": 0.2, "domain": "multiwoz"}, "wrong_rewards: is for simulated users of a single domain"),
        ({"domain": {"actions": "actions.json"}}, "only people talk about a list of actions; add user: person"),
        ({"domain": {"action": "actions.json"}, "user": "person"}, "domain"),
        ({"experiment_name": "a/b"}, "experiment_name: found 'a/b'"),
    ],
)
def test_a_mistake_names_its_key(given, said):
    with pytest.raises(UserError, match=said):
        load_policy_config(None, given)


def test_the_run_has_the_name_of_its_file_unless_it_has_its_own(tmp_path):
    path = tmp_path / "tea.yaml"
    path.write_text("# a run\nrun_dir: out\n", encoding="utf-8")
    assert str(load_policy_config(path).run_folder) == "out/tea"
    assert str(load_policy_config(path, {"experiment_name": "own"}).run_folder) == "out/own"
    assert str(PolicyConfig(run_dir="out").run_folder) == "out/policy"


def test_what_draws_or_learns_is_the_runs_identity_and_who_hosts_it_is_not():
    one = PolicyConfig().identity("abc")
    for free in ({"process_num": 8}, {"epoch": 3}, {"save_interval": 1}, {"domain": "elsewhere/restaurant"}):
        assert PolicyConfig(**free).identity("abc") == one
    for fixed in ({"seed": 1}, {"num_envs": 4}, {"batchsz": 100}, {"error_rate": 0.1}, {"policy": {"id": "random"}}):
        assert PolicyConfig(**fixed).identity("abc") != one
    assert PolicyConfig().identity("abd") != one
    for free in ({"show_goal": False}, {"rewards": [0, 1]}, {"reward_after": "turn"}):
        assert PolicyConfig(user="person", **free).identity("abc") == PolicyConfig(user="person").identity("abc")


def test_a_run_of_before_these_keys_goes_on():
    then = PolicyConfig().identity("abc")
    assert {key for key, value in then.items() if value is None} >= {
        "wrong_rewards"
    }  # as in a checkpoint without the key


def test_numbers_of_a_managers_policies_are_numbers():
    given = {"policies": {"hotel": {"id": "dqn", "args": {"lr": "3e-4", "hidden_sizes": [8]}}}, "others": "1e5x"}
    args = load_policy_config(None, {"policy": {"id": "manager", "args": given}}).policy.args
    assert args["policies"]["hotel"]["args"] == {"lr": 3e-4, "hidden_sizes": [8]}
    assert args["others"] == "1e5x"


def test_what_a_person_rewards_follows_from_the_domain():
    one, other = PolicyConfig(user="person"), PolicyConfig(user="person", domain={"actions": "a.json", "state": "mine"})
    assert (one.reward_range, one.rewards_each_answer) == ((-20, 20), False)
    assert (other.reward_range, other.rewards_each_answer) == ((-1, 1), True)
    assert other.model_dump()["domain"] == {"actions": "a.json", "state": {"id": "mine", "args": {}}}
