"""A stranger's folder: what its configuration may not do to whoever evaluates it, chats with it, resumes it or begins with it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForSequenceClassification

from rlhf_dialog import BaseReward, RewardFactory, UserError, main
from rlhf_dialog.commands import chat
from rlhf_dialog.data import sources
from rlhf_dialog.evaluation.untrusted import number_in, read_run_config
from rlhf_dialog.rewards import LengthMatch, remote
from rlhf_dialog.rewards.composite import reaches_out
from tests.parts.evaluations import ACTS, save_run
from tests.parts.poisoned import MARKER, with_code, write_run
from tests.parts.processes import load_script
from tests.parts.servers import serving

pytestmark = [pytest.mark.usefixtures("no_proxy"), pytest.mark.slow]
LENGTH = {"id": "LengthMatch"}
BUILT_IN = {"CompositeReward", "Intent", "LengthMatch", "Meteor", "NLPReward", "RemoteReward"}


def ones(number, body, handler):
    return 200, json.dumps({"scores": [1.0] * len(json.loads(body)["dialogues"])}).encode()


@pytest.fixture
def server(monkeypatch):
    """A server that would learn the secrets of the environment."""
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, MARKER)
    with serving(ones) as found:
        yield found


def asking(server, depth: int = 0) -> dict:
    """A reward that sends secrets to the server, inside of so many composites."""
    secrets = {"token_env": "HF_TOKEN", "headers_env": {"X-Key": "AWS_SECRET_ACCESS_KEY"}, "retries": 0}
    reward = {"id": "RemoteReward", "args": {"url": server.url, **secrets}}
    for _ in range(depth):
        reward = {"id": "CompositeReward", "args": {"parts": [LENGTH, {**reward, "weight": 0}]}}
    return reward


def measured(path: Path) -> dict:
    result = json.loads(path.read_text(encoding="utf-8"))
    return result.get("metrics") or result["after"]


# evaluate.py


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("mine", [False, True])
def test_evaluating_an_agent_asks_no_server_of_its_config(script, data, server, tmp_path, capsys, depth, mine):
    agent = save_run(tmp_path / "evil", data, 1, reward_class=asking(server, depth))
    argv = ["--agent", str(agent), "--output", str(tmp_path / "e.json"), "--max_prompts", "4"]
    assert script.main([*argv, *(["--data_path", data] if mine else [])]) == 0
    assert server.requests == []
    assert {"rouge1", "distinct_1"} <= set(measured(tmp_path / "e.json"))
    assert "score" not in measured(tmp_path / "e.json")
    assert json.loads((tmp_path / "e.json").read_text())["settings"]["reward_class"] is None
    warnings = [line for line in capsys.readouterr().err.splitlines() if "--trust_config" in line]
    assert len(warnings) == 1
    at = "reward_class.args." + "parts[1].args." * depth
    assert f"{at}url: sends every dialogue to a server; {at}token_env: reads the environment" in warnings[0]
    assert f"--config {tmp_path / 'evil/config.yaml'}" in warnings[0]
    assert MARKER not in warnings[0]


@pytest.mark.parametrize("trust", ["--trust_config", "--config"])
def test_a_config_that_is_trusted_or_named_may_ask(script, data, server, tmp_path, trust):
    agent = save_run(tmp_path / "run", data, 1, reward_class=asking(server, depth=1))
    argv = ["--agent", str(agent), "--output", str(tmp_path / "e.json"), "--max_prompts", "4", trust]
    assert script.main(argv + ([str(tmp_path / "run/config.yaml")] if trust == "--config" else [])) == 0
    assert measured(tmp_path / "e.json")["remote"]["mean"] == 1.0
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {MARKER}"}


def test_the_config_beside_a_baseline_a_link_or_inside_an_agent_asks_nobody(script, data, server, tmp_path):
    evil = save_run(tmp_path / "evil", data, 1, reward_class=asking(server))
    shutil.copy(tmp_path / "evil/config.yaml", evil / "config.yaml")
    clean = save_run(tmp_path / "clean", data, 2)
    (tmp_path / "linked").symlink_to(evil)
    (tmp_path / "cloned").mkdir()
    shutil.copytree(evil, tmp_path / "cloned/agent")
    (tmp_path / "cloned/config.yaml").symlink_to(tmp_path / "evil/config.yaml")
    end = ["--output", str(tmp_path / "e.json"), "--max_prompts", "4"]
    assert script.main(["--agent", str(clean), "--baseline", str(evil), *end]) == 0
    assert "score" in measured(tmp_path / "e.json")  # the clean one's own
    assert (
        script.main(["--agent", str(tmp_path / "cloned/agent"), "--baseline", str(clean), *end]) == 2
    )  # a link out of it
    for agent in ("linked", "evil/../evil/agent"):
        assert script.main(["--agent", str(tmp_path / agent), "--baseline", str(clean), *end]) == 0
        assert "score" not in measured(tmp_path / "e.json")
    assert server.requests == []


def test_the_environment_is_not_even_looked_at(script, data, server, tmp_path, monkeypatch):
    """A variable that is not set would be an error if it were read."""
    monkeypatch.delenv("HF_TOKEN")
    asked = []
    monkeypatch.setattr(remote, "_secret", lambda *words: asked.append(words))
    agent = save_run(tmp_path / "evil", data, 1, reward_class=asking(server, depth=1))
    assert script.main(["--agent", str(agent), "--output", str(tmp_path / "e.json"), "--max_prompts", "4"]) == 0
    assert asked == []


def test_a_run_with_an_environment_names_no_data(tmp_path):
    keys = {"model_path": "m", "environment": {"id": "restaurant"}}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(keys), encoding="utf-8")
    with pytest.raises(
        UserError, match=r"config.yaml: the run learned from the environment restaurant and names no data"
    ):
        read_run_config(None, path).data_path()
    path.write_text(yaml.safe_dump(keys | {"env": {"args": {"data_path": str(tmp_path)}}}), encoding="utf-8")
    assert read_run_config(None, path).data_path() == str(tmp_path)


def test_a_hub_name_of_a_found_config_is_not_looked_for(script, data, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr("rlhf_dialog.data.sources.from_hub.load_from_hub", lambda name, *_: asked.append(name) or [])
    agent = save_run(tmp_path / "evil", data, 1, env={"args": {"data_path": "someone/data"}})
    argv = ["--agent", str(agent), "--output", str(tmp_path / "e.json"), "--max_prompts", "4"]
    assert script.main(argv) == 2
    error = capsys.readouterr().err
    assert asked == []
    assert "env.args.data_path: 'someone/data' is not on this machine, so the Hub would be asked" in error
    assert str(tmp_path / "evil/config.yaml") in error
    assert "--trust_config" in error
    assert "--data_path" in error
    assert script.main([*argv, "--data_path", data]) == 0
    assert "score" in measured(tmp_path / "e.json")  # its reward is built in and local
    assert asked == []
    assert script.main([*argv, "--trust_config"]) == 2  # no data come of it here, but it is asked for
    assert asked == ["someone/data"]


@pytest.mark.parametrize("path", ["data.jsonl", "./d", "~/d", "/d", "a/b/c", "d.zip"])
def test_what_is_written_like_a_place_here_is_no_hub_name(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not sources.is_hub_name(path)


def test_a_place_that_exists_is_no_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sources.is_hub_name("someone/data")
    (tmp_path / "someone/data").mkdir(parents=True)
    assert not sources.is_hub_name("someone/data")


def nlp(**args) -> dict:
    return {"id": "NLPReward", "args": {"meteor_wordnet": "off", **args}}


def test_a_classifier_on_the_hub_is_left_out_but_for_one_of_the_user(
    script, data, classifier, tmp_path, monkeypatch, capsys
):
    asked = []
    monkeypatch.setattr("rlhf_dialog.data.hub.hub_reachable", lambda: asked.append(1) or False)
    agent = save_run(tmp_path / "evil", data, 1, reward_class=nlp(intent_model="someone/classifier"))
    argv = ["--agent", str(agent), "--output", str(tmp_path / "e.json"), "--max_prompts", "4"]
    assert script.main(argv) == 0
    assert asked == []
    assert not {"score", *ACTS} & set(measured(tmp_path / "e.json"))
    assert "reward_class.args.intent_model: 'someone/classifier' is not on this machine" in capsys.readouterr().err
    assert script.main([*argv, "--intent_model", classifier]) == 0
    assert {"score", *ACTS} <= set(measured(tmp_path / "e.json"))
    assert asked == []
    assert script.main([*argv, "--intent_model", "my/own"]) == 2  # named by the user, so it may be asked for
    assert asked


def test_a_pickle_that_a_found_config_allows_is_not_read(script, data, classifier, tmp_path, monkeypatch):
    pickled = tmp_path / "evil/classifier"
    shutil.copytree(classifier, pickled)
    (pickled / "model.safetensors").unlink()
    weights = AutoModelForSequenceClassification.from_pretrained(classifier).state_dict()
    torch.save(weights, pickled / "pytorch_model.bin")
    reads, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda *words, **options: reads.append(words[0]) or load(*words, **options))
    reward = nlp(intent_model=str(pickled), allow_pickle_weights=True)
    agent = save_run(tmp_path / "evil", data, 1, reward_class=reward, allow_pickle_weights=True)
    argv = ["--agent", str(agent), "--output", str(tmp_path / "e.json"), "--max_prompts", "4"]
    assert script.main(argv) == 0
    assert "score" not in measured(tmp_path / "e.json")
    assert script.main([*argv, "--intent_model", str(pickled)]) == 2  # the user named the folder, but allowed no pickle
    assert reads == []
    assert script.main([*argv, "--trust_config"]) == 0
    assert "score" in measured(tmp_path / "e.json")
    assert reads


@pytest.mark.parametrize("trust", [[], ["--trust_config"]])
def test_trust_remote_code_of_a_found_config_runs_nothing(script, data, tmp_path, monkeypatch, trust):
    agent = save_run(tmp_path / "evil", data, 1, trust_remote_code=True)
    with_code(agent, tmp_path / "went_off")
    argv = ["--agent", str(agent), "--output", str(tmp_path / "e.json"), *trust]
    assert script.main(argv) == 2
    clean = save_run(tmp_path / "clean", data, 1, trust_remote_code=True)
    assert script.main(["--agent", str(clean), "--baseline", *argv[1:]]) == 2
    assert chat.main(["--agent", str(agent)]) == 2
    judge = nlp(intent_model=str(agent))
    judged = save_run(tmp_path / "judged", data, 1, trust_remote_code=True, reward_class=judge)
    assert script.main(["--agent", str(judged), *argv[2:]]) == 2
    assert not (tmp_path / "went_off").exists()


class Quiet(LengthMatch):
    """Inherits what a built-in class says of itself."""


class Declared(LengthMatch):
    """Says it of its own code."""

    @classmethod
    def reaches_out(cls, args):
        return {}


@pytest.mark.parametrize(("cls", "built"), [(Quiet, False), (Declared, True)])
@pytest.mark.parametrize("name", ["Own", "LengthMatch"])
def test_a_class_of_the_user_is_built_for_a_stranger_only_if_it_says_that_it_may(
    data, tmp_path, monkeypatch, cls, built, name
):
    monkeypatch.setattr(RewardFactory, "classes", {**RewardFactory.classes, name: cls})
    parts = {"parts": [{"id": "CompositeReward", "args": {"parts": [{"id": name}]}}]}
    save_run(tmp_path, data, 1, reward_class={"id": "CompositeReward", "args": parts})
    path = tmp_path / "config.yaml"
    assert (read_run_config(None, path).reward() is not None) is built
    assert read_run_config(None, path, trust_found=True).reward() is not None
    assert read_run_config(path, tmp_path / "other.yaml").reward() is not None


def test_every_built_in_reward_says_itself_what_it_reaches():
    of_the_package = {
        name: cls for name, cls in RewardFactory.classes.items() if cls.__module__.startswith("rlhf_dialog.rewards.")
    }
    assert set(of_the_package) >= BUILT_IN
    for name, cls in of_the_package.items():
        assert "reaches_out" in vars(cls), name
    assert set(BaseReward.reaches_out({})) == {"id"}


@pytest.mark.parametrize(
    ("reward", "keys"),
    [
        (("Meteor", {}), set()),
        (("LengthMatch", {}), set()),
        (("Intent", {"intent_model": "./here"}), set()),
        (("Intent", {"intent_model": None}), {"args.intent_model"}),  # which would be the Hub's model `None`
        (
            ("Intent", {"intent_model": "x", "allow_pickle_weights": 1}),
            {"args.intent_model", "args.allow_pickle_weights"},
        ),
        (("NLPReward", {"intent_model": "x", "intent_coef": "0.0"}), set()),
        (("NLPReward", {"intent_model": "x", "intent_coef": "no"}), {"args.intent_model"}),
        (("NLPReward", {}), set()),  # an error when it is built
        (("CompositeReward", {"parts": [{"id": "RemoteReward", "args": {"url": "u"}}]}), {"args.parts[0].args.url"}),
        (("CompositeReward", {"parts": "RemoteReward"}), set()),
        (("Absent", {}), set()),
    ],
)
def test_what_a_reward_reaches(reward, keys):
    assert set(reaches_out(*reward)) == keys


# everything else that meets the folder


@pytest.fixture
def stranger(folder, server, tmp_path, monkeypatch):
    """A finished run whose stored configurations are replaced by hostile ones; `ppo.yaml` beside it is the user's own."""
    monkeypatch.chdir(tmp_path)
    own = write_run(tmp_path, folder, eval_interval=1, eval_episodes=2)
    run = tmp_path / "run_results/evil"
    assert main(["--config", str(own), "--experiment_name", "evil"]) == 0
    hostile = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8")) | {
        **{"reward_class": asking(server), "model_path": "someone/model", "ref_model": "someone/model"},
        **{"trust_remote_code": True, "allow_pickle_weights": True, "use_wandb": True},
    }
    for place in (run, run / "agent", run / "best_agent", *(run / "checkpoints").glob("iter_*")):
        (place / "config.yaml").write_text(yaml.safe_dump(hostile), encoding="utf-8")
    for state in run.glob("checkpoints/iter_*/trainer.json"):  # a stranger would have made the hashes fit
        kept = {k: v for k, v in json.loads(state.read_text()).items() if k not in ("files", "sizes", "sha256")}
        state.write_text(json.dumps(kept), encoding="utf-8")
    return run


@pytest.fixture
def hub(monkeypatch):
    """Whenever anybody wants to know whether the Hub is there."""
    asked = []
    monkeypatch.setattr("rlhf_dialog.data.hub.hub_reachable", lambda: asked.append(1) or False)
    return asked


DOORS = {
    "resume": ["--experiment_name", "evil", "--resume", "--max_iterations", "2"],
    "its weights": ["--experiment_name", "new", "--resume_weights_only", "run_results/evil"],
    "its agent": ["--experiment_name", "new", "--model_path", "run_results/evil/agent"],
    "its best agent": ["--experiment_name", "new", "--model_path", "run_results/evil/best_agent"],
    "smoke": ["--experiment_name", "new", "--model_path", "run_results/evil/agent", "--smoke"],
}


@pytest.mark.parametrize("door", DOORS)
def test_training_with_a_strangers_run_builds_nothing_of_its_config(stranger, server, hub, door):
    assert main(["--config", "ppo.yaml", *DOORS[door]]) == 0
    assert server.requests == hub == []


@pytest.mark.parametrize(
    "argv", [["--agent", "run_results/evil/agent"], ["--agent", "run_results/evil/best_agent"], []]
)
def test_talking_to_a_strangers_agent_builds_nothing_of_its_config(stranger, server, hub, monkeypatch, argv):
    said = iter(["Hello", "quit"])
    monkeypatch.setattr("builtins.input", lambda _: next(said))
    assert chat.main(argv) == 0
    assert server.requests == hub == []


def test_evaluating_and_plotting_a_strangers_run_builds_nothing_of_its_config(stranger, script, server, hub, tmp_path):
    plot = load_script("scripts/plot_run.py")
    for name in ("agent", "best_agent"):
        argv = ["--agent", str(stranger / name), "--output", str(tmp_path / "e.json"), "--max_prompts", "4"]
        assert script.main(argv) == 0
    assert plot.main(["--run", str(stranger)]) == 0
    assert server.requests == hub == []


@pytest.mark.parametrize("text", ["kl_target: [1]", "kl_target: .inf", "kl_target: true", "kl_target: {a: b}"])
def test_what_is_no_number_in_a_found_config_is_an_error(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="kl_target is not a finite number"):
        number_in(tmp_path / "config.yaml", "kl_target")


def test_a_number_in_a_found_config(tmp_path):
    path = tmp_path / "config.yaml"
    assert number_in(path, "kl_target") is None
    path.write_text("kl_target: 0.05\nreward_class: {id: x}\n", encoding="utf-8")
    assert number_in(path, "kl_target") == 0.05
    assert number_in(path, "kl_coef") is None
