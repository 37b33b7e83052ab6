"""Settings of a run of a policy and the environment that they make."""

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.runs.run import PolicyRun
from rlhf_dialog.task_oriented.runs.settings import PolicyConfig, load_policy_config
from rlhf_dialog.task_oriented.runs.training_world import open_person_world, open_world
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from tests.parts.persons import typing
from tests.parts.policy_runs import domain_file, policy_run
from tests.parts.small_domain import small_domain
from tests.parts.small_world import write_world


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batchsize": 1}, "batchsize: unknown key; did you mean 'batchsz'"),
        ({"error_rate": 1.5}, "error_rate: found 1.5"),
        ({"epoch": 0}, "epoch: found 0"),
        ({"batchsz": 7}, "batchsz: 7 .*num_envs: 8"),
        ({"imitation_dialogues": 3, "policy": {"id": "random"}}, "only ppo imitates, found policy 'random'"),
        ({"step_timeout_s": 5}, "step_timeout_s: .*environment"),
        ({"domain": {"actions": "actions.json"}}, "only people talk about a list of actions"),
        ({"domain": {"action": "actions.json"}, "user": "person"}, "domain"),
        ({"experiment_name": "a/b"}, "experiment_name: found 'a/b'"),
        ({"user": "person", "error_rate": 0.1}, "leave error_rate and imitation_dialogues out"),
        ({"user": "person", "imitation_dialogues": 1}, "leave error_rate and imitation_dialogues out"),
        ({"user": "person", "rewards": [3, 3]}, r"rewards: .*\[3.0, 3.0\]"),
        ({"user": "person", "reward_after": "week"}, "reward_after: found 'week'"),
        ({"environment": {"id": "Guess"}, "end_reward": [1, 0]}, "end_reward: an environment of your own"),
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


OWN = {"id": "Guess", "args": {}}


def settings(**changes):
    given = {"domain": "restaurant", "error_rate": 0.3, "user": "unfriendly", "max_turns": 7, "environment": None}
    return given | changes


def test_a_domain_and_its_user(tmp_path):
    world = open_world(settings(domain=str(domain_file(tmp_path))))
    environment = world.make()
    assert (world.name, world.hash, world.domain.hash) == ("tea", small_domain().hash, small_domain().hash)
    assert (len(world.names), world.num_features) == (environment.action_space.n, environment.layout.size)
    assert (environment.max_turns, environment.channel.error_rate) == (7, 0.3)
    assert isinstance(environment, ActLevel)


def test_a_class_of_the_users_own():
    world = open_world(settings(environment=OWN))
    assert (world.name, world.domain, world.num_features) == ("Guess", None, 2)
    assert list(world.names) == ["action 0", "action 1"]
    assert world.hash != open_world(settings(environment={"id": "Endless", "args": {}})).hash
    (episode,) = run_dialogues(RandomPolicy(PolicySpec(2, 2)), world.make, 0, [4])
    lines = world.transcript(episode).splitlines()
    assert lines[0] == "dialogue 4"
    assert lines[1].startswith(f"    1  action {episode.actions[0]}   [reward ")
    assert lines[-1].startswith(f"  {'success' if episode.success else 'no success'} after {len(episode)} turns")


def test_a_subclass_of_the_act_level_has_its_domain_and_its_rules():
    world = open_world(settings(environment={"id": "Hurried", "args": {"error_rate": 0.15}}))
    assert (world.name, world.domain.name) == ("restaurant", "restaurant")
    assert "inform_byname" in world.names
    (episode,) = run_dialogues(RandomPolicy(PolicySpec(2, 2)), world.make, 0, [0])
    assert "goal: " in world.transcript(episode)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"domain": {"actions": "nowhere.json", "state": {"id": "last_turns", "args": {}}}}, "no file 'nowhere.json'"),
        ({"domain": "multiwoz", "data_path": "{folder}"}, "one domain"),
    ],
)
def test_what_a_person_cannot_talk_about(tmp_path, changes, said):
    write_world(tmp_path)
    given = {key: value.format(folder=tmp_path) if isinstance(value, str) else value for key, value in changes.items()}
    with pytest.raises(UserError, match=said):
        open_person_world(settings(**given), typing(())[0])


def test_a_folder_in_use_is_refused_before_anything_is_built(tmp_path, monkeypatch):
    run = policy_run(tmp_path, epoch=1)
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.jsonl").write_text("{}\n", encoding="utf-8")
    (run.folder / "checkpoints").mkdir()
    monkeypatch.setattr(PolicyRun, "_build", lambda self: pytest.fail("something was built"))
    with pytest.raises(UserError):
        run.train()
