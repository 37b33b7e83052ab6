"""What a folder of somebody else names is not obeyed: no class of one's own, no file outside of it, no question to a server.

Each case has its control: with --trust_config, or as one's own YAML, the same command does what the folder asks for.
"""

import ast
import json
import shutil
import sys

import pytest
import yaml

from rlhf_dialog.commands.dispatcher import COMMANDS as COMMANDS_BY_NAME
from rlhf_dialog.commands.dispatcher import main
from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.feedback.commands.feedback import SUBCOMMANDS
from rlhf_dialog.feedback.commands.feedback import main as feedback
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.task_oriented.commands.evaluate_policy import main as evaluate_policy
from tests.parts.evaluations import save_run
from tests.parts.hub_server import hub_server  # noqa: F401  a fixture
from tests.parts.poisoned import MARKER, with_code
from tests.parts.processes import ROOT
from tests.parts.servers import serving
from tests.parts.tiny import write_data

SECRET = "the sentence that must not be shown"


class Witness:
    built: list[dict[str, object]] = []  # noqa: RUF012  what it was built with

    def __init__(self, **args):
        Witness.built.append(args)

    def reset(self, seed=None, options=None):
        raise RuntimeError("built")

    step = reset


@pytest.fixture
def witness():
    EnvironmentFactory.register("witness", Witness)
    Witness.built.clear()
    yield Witness.built
    del EnvironmentFactory.classes["witness"]


@pytest.fixture
def asked(monkeypatch):
    names = []

    def ask(name, *_args, **_keys):
        names.append(name)
        raise OSError("there is no Hub here")

    monkeypatch.setattr("rlhf_dialog.data.sources.from_hub.table_of_hub", ask)
    monkeypatch.setattr("huggingface_hub.snapshot_download", ask)
    monkeypatch.setattr("datasets.load_dataset", ask)
    return names


def policy_agent(folder, **keys):
    known = {"format_version": 1, "domain_name": "x", "domain_hash": "0", "domain": "restaurant", "error_rate": 0.0}
    known |= {"user": "friendly", "max_turns": 5, "policy": {"id": "random", "args": {}}, "environment": None}
    folder.mkdir(parents=True)
    (folder / "policy_agent.json").write_text(json.dumps(known | keys))
    return folder


def language_model(folder, environment):
    """A stranger's run of a language model, which needs no weights to be read as a folder."""
    (folder / "agent").mkdir(parents=True)
    (folder / "agent" / "config.json").write_text("{}")
    (folder / "config.yaml").write_text(yaml.safe_dump({"model_path": "x", "environment": environment}))
    return folder / "agent"


def outcome(command, capsys, *words):
    code = command([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out + said.err


def kinds(tmp_path, environment):
    return [
        policy_agent(tmp_path / "acts" / "agent", environment=environment),
        language_model(tmp_path / "words", environment),
    ]


@pytest.mark.parametrize("kind", [0, 1], ids=["a policy of acts", "a language model"])
def test_a_class_of_ones_own_is_not_built_with_a_strangers_arguments(tmp_path, capsys, witness, kind):
    agent = kinds(tmp_path, {"id": "witness", "args": {"path": "/etc/passwd"}})[kind]
    code, said = outcome(evaluate_policy, capsys, "--agent", agent, "--dialogues", 1)
    assert (code, witness) == (2, [])
    assert "environment.id: witness may open connections" in said
    assert "--trust_config" in said
    outcome(evaluate_policy, capsys, "--agent", agent, "--dialogues", 1, "--trust_config")
    assert witness[0] == {"path": "/etc/passwd"}


OPENED: list[str] = []  # what Python opens while a test looks
LOOKING: list[bool] = []


def look(event, args):
    if LOOKING and event in ("open", "sqlite3.connect"):
        OPENED.append(str(args[0]))


sys.addaudithook(look)  # which stays, since none can be removed


@pytest.fixture
def opened():
    OPENED.clear()
    LOOKING.append(True)
    yield OPENED
    LOOKING.clear()


def places(tmp_path, secret):
    """Agents that name a domain outside of their folder: themselves, through a link, or in a run of a language model."""
    acts = tmp_path / "acts"
    yield policy_agent(acts / "file", domain=str(secret))
    yield policy_agent(acts / "list", domain={"actions": str(secret)}, max_turns=5, user="person")
    linked = policy_agent(acts / "link", domain="restaurant")
    (linked / "domain.json").symlink_to(secret)
    yield linked
    yield language_model(tmp_path / "words", {"id": "restaurant", "args": {"domain": str(secret)}})


@pytest.mark.parametrize("place", range(4))
def test_a_domain_outside_of_the_folder_is_refused_before_anything_of_it_is_opened(tmp_path, capsys, opened, place):
    secret = tmp_path / "secret" / "db" / "CamRestDB.json"
    secret.parent.mkdir(parents=True)
    secret.write_text(SECRET)
    agent = [*places(tmp_path, secret)][place]
    opened.clear()
    code, said = outcome(evaluate_policy, capsys, "--agent", agent, "--dialogues", 1)
    assert (code, SECRET in said) == (2, False)
    is_link, is_list = place == 2, place == 1
    assert ("is a link out of" if is_link else "' is not in ") in said
    assert not [one for one in opened if one.endswith(("CamRestDB.json", "domain.json"))]
    if is_link or is_list:  # which no trust opens, and which only people talk about
        return
    outcome(evaluate_policy, capsys, "--agent", agent, "--dialogues", 1, "--trust_config")
    assert [one for one in opened if one.endswith(("CamRestDB.json", "domain.json"))]


def test_a_domain_that_the_command_line_names_is_opened(tmp_path, capsys, opened):
    domain = tmp_path / "mine.json"
    domain.write_text("{}")
    for agent in kinds(tmp_path, {"id": "restaurant", "args": {"domain": "/stranger/tea.json"}})[1:]:
        code, said = outcome(evaluate_policy, capsys, "--agent", agent, "--dialogues", 1, "--domain", domain)
        assert (code, f"{domain}: " in said and "name: Field required" in said) == (2, True)
    assert "/stranger/tea.json" not in opened


def test_a_bots_own_settings_do_not_ask_the_hub(tmp_path, capsys, asked):
    (tmp_path / "agent").mkdir()
    for name in ("config.json", "rlhf_dialog.json", "model.safetensors"):
        (tmp_path / "agent" / name).write_text("{}")
    outcome(feedback, capsys, "init", "--run", tmp_path / "bot", "--agent", tmp_path / "agent")
    (tmp_path / "bot" / "config.yaml").write_text("sft_data_path: stranger/data\n")
    learn = ("learn", "--run", tmp_path / "bot")
    for words in (["--dry_run"], ["--candidate", tmp_path / "agent"]):
        code, said = outcome(feedback, capsys, *learn, *words)
        assert (code, asked) == (2, [])
        assert "sft_data_path: 'stranger/data' is not on this machine" in said
        assert "--trust_config" in said
    code, said = outcome(feedback, capsys, *learn, "--dry_run", "--trust_config")
    assert code == 0


# every command, with servers that listen, a token in the environment and a file with a secret

OUTPUTS = ("out", "hub_polite")  # the second is that of a push that is only shown


def ones(number, body, handler):
    return 200, json.dumps({"scores": [1.0] * len(json.loads(body)["dialogues"])}).encode()


@pytest.fixture
def place(tmp_path, monkeypatch, hub_server):  # noqa: F811
    """A working folder with `data`, `secret.txt`, the user's own `own.yaml`, and a stranger's run `evil` and acts `acts`; what
    the servers were asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", MARKER)
    monkeypatch.setattr("builtins.input", lambda _: "quit")
    write_data(tmp_path / "data", 25)
    (tmp_path / "secret.txt").write_text(SECRET)
    with serving(ones) as server, serving(ones) as engine:
        reward = {"id": "RemoteReward", "args": {"url": server.url, "token_env": "HF_TOKEN", "retries": 0}}
        for name in ("evil", "quiet_run"):
            save_run(tmp_path / name, str(tmp_path / "data"), 1)
        hostile = yaml.safe_load((tmp_path / "evil/config.yaml").read_text()) | {
            **{"reward_class": reward, "model_path": "stranger/model", "ref_model": "stranger/model"},
            **{
                "trust_remote_code": True,
                "allow_pickle_weights": True,
                "env": {"args": {"data_path": "stranger/data"}},
                "engine": {"urls": [engine.url], "token_env": "HF_TOKEN"},
            },
        }
        for folder in ("evil", "evil/agent"):
            (tmp_path / folder / "config.yaml").write_text(yaml.safe_dump(hostile))
        (tmp_path / "evil/metrics.jsonl").write_text('{"iteration": 1, "objective/score": 0.5}\n')
        policy_agent(tmp_path / "acts/agent", environment={"id": "corpus", "args": {"data_path": "stranger/data"}})
        shutil.copytree(tmp_path / "evil", tmp_path / "talks")
        shutil.copytree(tmp_path / "evil", tmp_path / "linked")
        (tmp_path / "linked/config.yaml").unlink()
        (tmp_path / "linked/config.yaml").symlink_to(tmp_path / "evil/config.yaml")
        shutil.copytree(tmp_path / "evil", tmp_path / "function")
        part = {"id": "CompositeReward", "args": {"parts": [{"id": "LengthMatch"}, {"id": "rewards.py:f"}]}}
        keys = {"reward_class": part, "guard": {"judge": {"id": "rewards.py:f"}}, "eval_interval": 1}
        for path in (tmp_path / "function").rglob("config.yaml"):
            path.write_text(yaml.safe_dump(hostile | keys))
        code = f"open({str(tmp_path / 'ran')!r}, 'a')\ndef f(dialogues):\n    return [1.0] * len(dialogues)\n"
        (tmp_path / "rewards.py").write_text(code)
        shutil.copytree(tmp_path / "evil", tmp_path / "coded")
        with_code(tmp_path / "coded/agent", tmp_path / "went_off")
        args = {"model": "stranger/model", "openings": str(tmp_path / "secret.txt")}
        talks = {"model_path": "m", "environment": {"id": "language_model_user", "args": args}}
        (tmp_path / "talks/config.yaml").write_text(yaml.safe_dump(talks))
        own = {
            "model_path": "evil/agent",
            "env": {"args": {"data_path": "data"}},
            "reward_class": {"id": "LengthMatch"},
        }
        own |= {"rollout_batch_size": 2, "max_new_tokens": 4, "max_prompt_length": 60, "run_dir": "out"}
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
        tmp_path.joinpath("out").mkdir()
        Bot.create(tmp_path / "bot", "function/agent")
        yield tmp_path, lambda: [*server.requests, *hub_server.requests, *engine.paths], engine.paths


def written(folder):
    """Files outside of the output, and their contents."""
    kept = (path for path in folder.rglob("*") if path.is_file() and "hub_cache" not in path.parts)
    return {str(path): path.read_bytes() for path in kept if path.relative_to(folder).parts[0] not in OUTPUTS}


COMMANDS = {
    "evaluate": "--agent evil/agent --data_path data --output out/e.json --max_prompts 2",
    "evaluate of its data": "--agent evil/agent --output out/e.json --max_prompts 2",
    "evaluate of a link": "--agent linked/agent --data_path data --output out/e.json --max_prompts 2",
    "evaluate of its code": "--agent coded/agent --data_path data --output out/e.json --trust_config",
    "evaluate of a function": "--agent function/agent --data_path data --output out/e.json --max_prompts 2",
    "report of a function": "function --output out/report.html",
    "export of a function": "--run function --output out/agent",
    "chat of a function": "--agent function/agent",
    "evaluate with a baseline": "--agent quiet_run/agent --baseline evil/agent --output out/e.json --max_prompts 2",
    "chat": "--agent evil/agent",
    "chat of its code": "--agent coded/agent",
    "train": "--config own.yaml --experiment_name new --max_iterations 1",
    "train with its critic": "--config own.yaml --max_iterations 1 --critic_path evil/agent --use_share_model false",
    "plot-run": "--run evil --output out/plot.png",
    "report": "evil --output out/report.html",
    "push-to-hub": "--agent evil/agent --repo polite --dry_run",
    "export": "--run evil --output out/agent",
    "train-sft": "--data_path data --model_path evil/agent --output out/sft --max_steps 1 --batch_size 2",
    "train-preference-model": "--data_path data --model_path evil/agent --output out/m --max_steps 1",
    "train-intent-classifier": "--data_path data --model_path evil/agent --output out/m --max_steps 1",
    "evaluate-policy": "--agent acts/agent --dialogues 1 --output out/e.json",
    "evaluate-policy of a language model": "--agent talks/agent --dialogues 1 --output out/e.json",
    "feedback init": "--run out/bot --agent evil/agent",
    "feedback learn": "--run bot --dry_run",
    "feedback export": "--run bot --output out/pairs.jsonl",
}
OTHERS = {
    "feedback serve",  # tests/models/test_network.py has what it loads
    # these open no folder of a stranger
    *("audit", "benchmark", "doctor", "schema", "train-policy", "train-relevance-model", "write-dialogues"),
    *(f"feedback {name}" for name in ("backup", "forget", "import", "invite", "people")),
    *(f"feedback {name}" for name in ("pull", "revoke", "rollback", "status")),
}
CONTROLS = {
    "chat": "--agent evil/agent --trust_config",
    "export": "--run evil --output out/agent --trust_config",
    "evaluate": "--agent evil/agent --data_path data --output out/e.json --max_prompts 2 --trust_config",
    "evaluate of its data": "--agent evil/agent --output out/e.json --max_prompts 2 --trust_config",
    "train": "--config evil/config.yaml --experiment_name new --run_dir out",
    "evaluate of a function": "--agent function/agent --data_path data --output out/e.json --max_prompts 2 --trust_config",
    "evaluate-policy": "--agent acts/agent --dialogues 1 --output out/e.json --trust_config",
    "evaluate-policy of a language model": "--agent talks/agent --dialogues 1 --output out/e.json --trust_config",
}


def command_of(name):
    return name.partition(" of ")[0].partition(" with ")[0]


def words_of(name, text):
    return [*command_of(name).split(), *text.split()]


def test_every_command_is_in_the_table():
    commands = {*COMMANDS_BY_NAME, *(f"feedback {name}" for name in SUBCOMMANDS)} - {"feedback"}
    assert sorted(commands) == sorted({*map(command_of, COMMANDS), *OTHERS})


def code_of(words):
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_asked_shown_or_written_elsewhere(place, name, capfd):
    folder, asked, _ = place
    before = written(folder)
    code = code_of(words_of(name, COMMANDS[name]))
    said = "".join(capfd.readouterr())
    assert code in (0, 2), said
    assert asked() == []
    outputs = [path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()]
    assert not any(secret.encode() in text for secret in (SECRET, MARKER) for text in [said.encode(), *outputs])
    assert written(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTROLS)
def test_trusted_it_is_asked(place, name, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)  # the Hub's library asks again, and waits
    code_of(words_of(name, CONTROLS[name]))
    assert (place[1]() != []) == (name not in ("chat", "export", "evaluate of a function"))
    assert (place[0] / "ran").exists() == (name == "evaluate of a function")
    assert place[2] == []  # an engine is for training alone, after the models are there


@pytest.mark.slow
def test_a_run_that_goes_on_has_the_users_own_settings(place):
    folder, asked, _ = place
    train = ["train", "--config", "own.yaml", "--max_iterations", "1", "--experiment_name", "new"]
    assert main(train) == 0
    hostile = (folder / "evil/config.yaml").read_bytes()
    for path in (folder / "out/new").rglob("config.yaml"):
        path.write_bytes(hostile)
    for state in (folder / "out/new/checkpoints").glob("iter_*/trainer.json"):  # a stranger makes the hashes fit
        kept = {key: v for key, v in json.loads(state.read_text()).items() if key not in ("files", "sizes", "sha256")}
        state.write_text(json.dumps(kept))
    assert main([*train, "--resume", "--max_iterations", "2"]) == 0
    assert main([*train[:-1], "other", "--resume_weights_only", "out/new"]) == 0
    assert asked() == []


# processes that a command starts import nothing from the working directory


def test_every_python_that_is_started_has_the_option():
    """Wherever the interpreter is named first in a list, the option is next; a build must find its own folder."""
    started_ones = {}
    for place in ("rlhf_dialog", "experiments", "benchmarks", "scripts"):
        for path in (ROOT / place).rglob("*.py"):
            if "tests" not in path.parts and "sys.executable" in (source := path.read_text(encoding="utf-8")):
                for node in ast.walk(ast.parse(source)):
                    if isinstance(node, ast.List) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
                        started_ones[f"{path.relative_to(ROOT)}:{node.lineno}"] = ast.unparse(node.elts[1])
    assert len(started_ones) >= 10
    others = [place for place, option in started_ones.items() if option != "'-P'"]
    assert [place.partition(":")[0] for place in others] == ["scripts/check_wheel.py"]
