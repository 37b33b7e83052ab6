import json
from itertools import pairwise
from pathlib import Path

import pytest

from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.sampler import Sampler, run_dialogues
from rlhf_dialog.task_oriented.runs.run import PolicyConsole, PolicyRun
from rlhf_dialog.task_oriented.runs.settings import PolicyConfig, load_policy_config
from rlhf_dialog.task_oriented.runs.training_world import open_person_world, open_world
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from tests.parts import own_environments  # noqa: F401 - it registers them
from tests.parts.policy_runs import PPO_ARGS, domain_file, numbers, policy_run
from tests.parts.small_domain import small_domain
from tests.parts.small_world import write_world

ITERATION = {"iteration": 3, "dialogues": 41, "success": 0.75, "reward": 6.5, "turns": 8.25, "FPS": 812.4}
EVALUATION = {"eval/success": 0.5, "eval/reward": 1.25}
RULES = {"eval/handcrafted_success": 0.875, "eval/handcrafted_reward": 9.0}


@pytest.mark.parametrize(
    ("metrics", "lines"),
    [
        (ITERATION, ["iteration 3  dialogues 41  success 0.750  reward 6.50  turns 8.2  812 turns a second"]),
        (EVALUATION, ["evaluation of iteration 3: success 0.500, reward 1.25"]),
        (EVALUATION | RULES, ["evaluation of iteration 3: success 0.500, reward 1.25 (handcrafted: 0.875, 9.00)"]),
        ({"time/sample": 1.0}, []),
    ],
)
def test_lines_where_nobody_watches(metrics, lines, caplog):
    console = PolicyConsole(live=True)  # there is no terminal
    with caplog.at_level("INFO", logger="rlhf_dialog"):
        console.log(3, metrics)
    console.close()
    assert [record.getMessage() for record in caplog.records] == lines


WHOLE = {"imitation_dialogues": 4, "eval_interval": 4, "save_interval": 4}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    policy_run(folder, **WHOLE).run()
    return folder / "run"


def weights(run: Path) -> bytes:
    return (run / "agent" / "policy.safetensors").read_bytes()


def resumed(folder: Path, **changes) -> Path:
    policy_run(folder, resume=True, **WHOLE | changes).run()
    return folder / "run"


def test_what_a_run_leaves(whole):
    names = ["agent", "checkpoints", "config.yaml", "metrics.jsonl", "plot.png"]
    assert sorted(path.name for path in whole.iterdir()) == names
    rows = numbers(whole)
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["time_steps"] for row in rows] == [50, 100, 150, 200, 250, 300]
    assert [row["iteration"] for row in rows if "eval/success" in row] == [4, 6]
    assert sorted(path.name for path in (whole / "checkpoints").glob("iter_*")) == ["iter_000004", "iter_000006"]
    assert len({row["eval/handcrafted_reward"] for row in rows if "eval/success" in row}) == 1
    assert rows[0]["imitation/accuracy"] > 0
    assert all(later["dialogues"] >= row["dialogues"] for row, later in pairwise(rows))
    agent = json.loads((whole / "agent" / "policy_agent.json").read_text(encoding="utf-8"))
    assert (agent["domain_name"], agent["error_rate"], agent["policy"]["id"]) == ("tea", 0.15, "ppo")


@pytest.mark.slow
def test_a_failure_while_turns_are_sampled_loses_no_finished_iteration(tmp_path, whole, monkeypatch):
    sample, calls = Sampler.sample, []

    def failing(self, *args):
        calls.append(1)
        if len(calls) == 4:
            sample(self, args[0], 17)  # in the middle of the fourth iteration
            raise RunStopped("a process has ended")
        return sample(self, *args)

    monkeypatch.setattr(Sampler, "sample", failing)
    with pytest.raises(RunStopped):
        policy_run(tmp_path, **WHOLE).run()
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text(encoding="utf-8") == "iter_000003"
    assert not (tmp_path / "run" / "agent").exists()
    monkeypatch.setattr(Sampler, "sample", sample)
    run = resumed(tmp_path)
    assert numbers(run) == numbers(whole)
    assert weights(run) == weights(whole)


@pytest.mark.slow
def test_a_run_in_an_environment_of_the_users_own_goes_on_and_has_no_rules_beside_it(tmp_path):
    own = {"environment": {"id": "Guess", "args": {}}, "domain": "restaurant", "error_rate": 0.0, "step_timeout_s": 20}
    own["policy"] = {"id": "ppo", "args": PPO_ARGS | {"final_lr": 1.0}}  # else the learning rate depends on `epoch`
    policy_run(tmp_path, experiment_name="whole", **own).run()
    whole = numbers(tmp_path / "whole")
    assert whole[-1]["eval/success"] == 1.0
    assert "eval/handcrafted_success" not in whole[-1]
    policy_run(tmp_path, epoch=3, **own).run()
    policy_run(tmp_path, resume=True, **own).run()
    assert numbers(tmp_path / "run")[3:] == whole[3:]
    with pytest.raises(UserError, match="was trained on the domain Guess"):
        policy_run(tmp_path, resume=True, epoch=7, **own | {"environment": {"id": "Hurried", "args": {}}}).run()


@pytest.mark.slow
def test_the_last_line_says_what_came_out_and_where_the_plot_is(tmp_path, caplog):
    run = policy_run(tmp_path, epoch=3)
    with caplog.at_level("INFO", logger="rlhf_dialog"):
        run.run()
    metrics = numbers(tmp_path / "run")[-1]
    last, plot = caplog.records[-1].getMessage(), tmp_path / "run" / "plot.png"
    assert f"3 iterations, {metrics['dialogues']} dialogues: success {metrics['eval/success']:.3f}" in last
    assert f"(handcrafted: {metrics['eval/handcrafted_success']:.3f}, " in last
    assert last.endswith(f"plot: {plot}")
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert [text.split(",")[0] for text in run.transcripts(2)] == ["dialogue 0", "dialogue 1"]


def test_what_an_environment_of_the_users_own_cannot_do_is_refused_before_anything_is_written(tmp_path):
    own = {"environment": {"id": "Guess", "args": {}}, "domain": "restaurant", "error_rate": 0.0}
    with pytest.raises(UserError, match="rules need a domain"):
        policy_run(tmp_path, imitation_dialogues=3, **own).run()
    with pytest.raises(UserError, match="error_rate: an environment of your own"):
        policy_run(tmp_path, **own | {"error_rate": 0.1})
    with pytest.raises(UserError, match="unknown policy 'pppo'"):
        policy_run(tmp_path, policy={"id": "pppo"}).run()
    assert not (tmp_path / "run").exists()


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


def test_what_draws_or_learns_is_the_runs_identity_and_who_hosts_it_is_not():
    one = PolicyConfig().identity("abc")
    for free in ({"process_num": 8}, {"epoch": 3}, {"save_interval": 1}, {"domain": "elsewhere/restaurant"}):
        assert PolicyConfig(**free).identity("abc") == one
    for fixed in ({"seed": 1}, {"num_envs": 4}, {"batchsz": 8}, {"error_rate": 0.1}, {"policy": {"id": "random"}}):
        assert PolicyConfig(**fixed).identity("abc") != one
    assert PolicyConfig().identity("abd") != one
    for free in ({"show_goal": False}, {"rewards": [0, 1]}, {"reward_after": "turn"}):
        assert PolicyConfig(user="person", **free).identity("abc") == PolicyConfig(user="person").identity("abc")


def test_the_name_of_a_run_and_numbers_of_a_managers_policies(tmp_path):
    given = {"policies": {"hotel": {"id": "dqn", "args": {"lr": "3e-4", "hidden_sizes": [8]}}}, "others": "1e5x"}
    args = load_policy_config(None, {"policy": {"id": "manager", "args": given}}).policy.args
    assert args["policies"]["hotel"]["args"] == {"lr": 3e-4, "hidden_sizes": [8]}
    assert args["others"] == "1e5x"
    path = tmp_path / "tea.yaml"
    path.write_text("# a run\nrun_dir: out\n", encoding="utf-8")
    assert str(load_policy_config(path).run_folder) == "out/tea"
    assert str(load_policy_config(path, {"experiment_name": "own"}).run_folder) == "out/own"
    assert str(PolicyConfig(run_dir="out").run_folder) == "out/policy"


def test_what_a_person_rewards_follows_from_the_domain():
    one, other = PolicyConfig(user="person"), PolicyConfig(user="person", domain={"actions": "a.json", "state": "mine"})
    assert (one.reward_range, one.rewards_each_answer) == ((-20, 20), False)
    assert (other.reward_range, other.rewards_each_answer) == ((-1, 1), True)
    assert other.model_dump()["domain"] == {"actions": "a.json", "state": {"id": "mine", "args": {}}}


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
    world = open_world(settings(environment={"id": "Guess", "args": {}}))
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
        ({"error_rate": 0.15}, r"error_rate: with several domains .* found 0\.15"),
        ({"user": "unfriendly"}, "user 'unfriendly': with several domains"),
        ({"domain": "restaurant", "data_path": None, "end_reward": [1, 0]}, "end_reward: only the domain multiwoz"),
    ],
)
def test_what_does_not_fit_one_domain_or_several(tmp_path, changes, said):
    given = {"domain": "multiwoz", "data_path": str(write_world(tmp_path)), "error_rate": 0.0, "user": "friendly"}
    with pytest.raises(UserError, match=said):
        open_world(settings(**given | changes))


def test_what_a_person_cannot_talk_about(tmp_path):
    nowhere = {"actions": "nowhere.json", "state": {"id": "last_turns", "args": {}}}
    with pytest.raises(UserError, match=r"no file 'nowhere\.json'"):
        open_person_world(settings(domain=nowhere), teacher=None)
    several = settings(domain="multiwoz", data_path=str(write_world(tmp_path)))
    with pytest.raises(UserError, match="one domain"):
        open_person_world(several, teacher=None)


def test_a_folder_in_use_is_refused_before_anything_is_built(tmp_path, monkeypatch):
    run = policy_run(tmp_path, epoch=1)
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.jsonl").write_text("{}\n", encoding="utf-8")
    (run.folder / "checkpoints").mkdir()
    monkeypatch.setattr(PolicyRun, "_build", lambda self: pytest.fail("something was built"))
    with pytest.raises(UserError):
        run.run()
