"""What a configuration that was found may have built, and what only --trust_config allows; the commands meet it in
tests/commands/test_found_folders.py."""

import pytest
import yaml

import rlhf_dialog.environments  # noqa: F401  registers its class
from rlhf_dialog import RewardFactory, UserError
from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.evaluation.untrusted import REACHES_NOTHING, read_run_config, why_refused
from rlhf_dialog.rewards import LengthMatch
from rlhf_dialog.task_oriented.policies.base import PolicyFactory

REMOTE = {"id": "RemoteReward", "args": {"url": "http://127.0.0.1:9"}}
HUB = "some/body"


def composite(part):
    return {"id": "CompositeReward", "args": {"parts": [{"id": "LengthMatch"}, part]}}


def test_every_class_of_the_package_is_on_the_list_but_those_that_ask_a_server():
    registries = (RewardFactory, EnvironmentFactory, PolicyFactory)
    names = {name for one in registries for name in one.names() if one.find(name).__module__.startswith("rlhf_dialog.")}
    assert names - {"JudgeReward", "RemoteReward"} == REACHES_NOTHING


@pytest.mark.parametrize(
    ("registry", "spec", "refused"),
    [
        (RewardFactory, {"id": "Meteor"}, None),
        (RewardFactory, REMOTE, "id: "),
        (RewardFactory, {"id": "JudgeReward", "args": {}}, "id: "),
        (RewardFactory, composite(composite(REMOTE)), "args.parts[1].args.parts[1].id: "),
        (RewardFactory, {"id": "Intent", "args": {"intent_model": "./here"}}, None),
        (RewardFactory, {"id": "Intent", "args": {"intent_model": None}}, "args.intent_model: "),  # the model `None`
        (RewardFactory, {"id": "Intent", "args": {"intent_model": ["./here"]}}, "args.intent_model: "),
        (RewardFactory, {"id": "Intent", "args": {"intent_model": "./x", "act_model": HUB}}, "args.act_model: "),
        (RewardFactory, {"id": "NLPReward", "args": {"allow_pickle_weights": 1}}, "args.allow_pickle_weights: "),
        (RewardFactory, composite({"id": "RewardModel", "args": {"members": ["./x", HUB]}}), ".args.members[1]: "),
        (RewardFactory, {"id": "Absent", "args": {}}, None),  # `create` refuses it by its name
        (RewardFactory, {"id": "rewards.py:f"}, "id: 'rewards.py:f' would run"),
        (RewardFactory, {"id": "os:system"}, "id: 'os:system' would run"),
        (RewardFactory, composite(composite({"id": "rewards.py:f"})), "args.parts[1].args.parts[1].id: "),
        (RewardFactory, composite({"id": ["os:system"]}), "args.parts[1].id: "),
        (EnvironmentFactory, {"id": "os:system"}, "id: 'os:system' would run"),
        (PolicyFactory, {"id": "manager", "args": {"others": {"id": "os:system"}}}, "args.others.id: "),
        (EnvironmentFactory, {"id": "corpus", "args": {"data_path": HUB}}, "args.data_path: "),
        (EnvironmentFactory, {"id": "language_model_user", "args": {"model": HUB}}, "args.model: "),
        (EnvironmentFactory, {"id": "language_model_user", "args": {"goals": ["/etc/passwd"]}}, None),  # a text
        (EnvironmentFactory, {"id": "language_model_user", "args": {"goals": "/etc/passwd"}}, "args.goals: "),
        (EnvironmentFactory, {"id": "restaurant", "args": {"domain": "restaurant"}}, None),
        (EnvironmentFactory, {"id": "restaurant", "args": {"domain": "link.json"}}, "args.domain: "),
        (PolicyFactory, {"id": "gp_sarsa", "args": {"prior": "inside"}}, None),
        (PolicyFactory, {"id": "committee", "args": {"abstraction": "inside/link"}}, "args.abstraction: "),
        (PolicyFactory, {"id": "manager", "args": {"policies": {"hotel": "own"}}}, "args.policies.hotel: own "),
        (PolicyFactory, {"id": "manager", "args": {"others": {"id": "own"}}}, None),
        (PolicyFactory, {"id": "manager", "args": {"others": {"id": "own", "args": {"x": 1}}}}, "args.others.id: own "),
    ],
)
def test_what_is_refused(registry, spec, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PolicyFactory, "classes", PolicyFactory.classes | {"own": Own})
    (tmp_path / "found/inside").mkdir(parents=True)
    (tmp_path / "inside").symlink_to("found/inside")
    for link in ("link.json", "inside/link"):
        (tmp_path / link).symlink_to("/etc/passwd")
    if refused is None:
        (tmp_path / "inside/link").unlink()
    found = why_refused(registry, spec["id"], spec.get("args") or {}, tmp_path / "found")
    assert found is None if refused is None else found is not None and refused in found


class Own(LengthMatch):
    """A class of the user's, which may do anything."""

    def __init__(self, weight=2):
        self.weight = weight


def found_run(tmp_path, reward_class, **keys):
    path = tmp_path / "config.yaml"
    keys = {"model_path": "m", "env": {"args": {"data_path": "someone/data"}}, "reward_class": reward_class} | keys
    path.write_text(yaml.safe_dump(keys), encoding="utf-8")
    return path


@pytest.mark.parametrize("wrap", [dict, composite])
def test_a_function_of_a_found_configuration_runs_only_where_the_file_is_trusted(tmp_path, monkeypatch, caplog, wrap):
    """Reading the file runs nothing either, wherever it names the function."""
    monkeypatch.chdir(tmp_path)
    ran = tmp_path / "ran"
    (tmp_path / "rewards.py").write_text(f"open({str(ran)!r}, 'x')\ndef f(dialogues): return [1.0] * len(dialogues)\n")
    spec = wrap({"id": "rewards.py:f"})
    path = found_run(tmp_path, spec, guard={"judge": spec}, eval_interval=1)
    assert read_run_config(None, path).reward() is None
    assert "rewards.py:f' would run a function" in caplog.text
    assert not ran.exists()
    assert read_run_config(None, path, trust_found=True).reward() is not None
    assert ran.exists()


@pytest.mark.parametrize("name", ["Own", "LengthMatch"])
def test_a_class_of_the_user_is_built_where_they_named_or_trust_the_file(tmp_path, monkeypatch, caplog, name):
    monkeypatch.setattr(RewardFactory, "classes", {**RewardFactory.classes, name: Own})
    path = found_run(tmp_path, composite({"id": name, "args": {"weight": 3}}))
    assert read_run_config(None, path).reward() is None
    assert "reward_class.args.parts" in caplog.text
    assert f"--trust_config or --config {path}" in caplog.text
    for allowed in (read_run_config(None, path, trust_found=True), read_run_config(path, tmp_path / "other.yaml")):
        assert allowed.reward() is not None
    for spec in ({"id": name}, {"id": name, "args": {"weight": 2}}):  # the file says nothing that the class does not
        assert read_run_config(None, found_run(tmp_path, composite(spec))).reward() is not None


def test_a_model_that_the_user_named_may_be_on_the_hub(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("rlhf_dialog.data.hub.hub_reachable", lambda: asked.append(1) or False)
    run = read_run_config(None, found_run(tmp_path, composite({"id": "Intent", "args": {"intent_model": HUB}})))
    assert run.reward() is None
    assert run.reward({"other": "my/own"}) is None
    assert asked == []
    with pytest.raises(UserError, match="my/own"):
        run.reward({HUB: "my/own"})
    assert asked


def test_the_data_of_a_run(tmp_path):
    path = found_run(tmp_path, {"id": "LengthMatch"})
    with pytest.raises(UserError, match=r"config\.yaml was found.* env\.args\.data_path: 'someone/data' .*--data_path"):
        read_run_config(None, path).data_path()
    assert read_run_config(None, path, trust_found=True).data_path() == "someone/data"
    keys = {"environment": {"id": "restaurant"}, "env": {}}
    with pytest.raises(UserError, match="the environment restaurant and names no data"):
        read_run_config(None, found_run(tmp_path, {"id": "NoReward"}, **keys)).data_path()
