"""A stranger's folder in front of each command, with servers that listen, a token in the environment and a file with a secret.

Nothing is asked, no secret is shown, and nothing is written outside of the output. The controls: what the folder asks for does
reach the servers with --trust_config, or as one's own YAML.
"""

import json
import shutil

import pytest
import yaml

from rlhf_dialog.commands.dispatcher import COMMANDS as COMMANDS_BY_NAME
from rlhf_dialog.commands.dispatcher import main
from rlhf_dialog.feedback.commands.feedback import SUBCOMMANDS
from tests.parts.evaluations import save_run
from tests.parts.hub_server import hub_server  # noqa: F401  a fixture
from tests.parts.poisoned import MARKER, with_code
from tests.parts.servers import serving
from tests.parts.tiny import write_data

pytestmark = pytest.mark.slow
OUTPUTS = ("out", "hub_polite")  # the second is that of a push that is only shown
SECRET = "the sentence that must not be shown"


def ones(number, body, handler):
    return 200, json.dumps({"scores": [1.0] * len(json.loads(body)["dialogues"])}).encode()


@pytest.fixture
def place(tmp_path, monkeypatch, hub_server):  # noqa: F811
    """A working folder with `data`, `secret.txt`, the user's own `own.yaml`, and a stranger's run `evil` and acts `acts`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", MARKER)
    monkeypatch.setattr("builtins.input", lambda _: "quit")
    write_data(tmp_path / "data", 25)
    (tmp_path / "secret.txt").write_text(SECRET)
    with serving(ones) as server:
        reward = {"id": "RemoteReward", "args": {"url": server.url, "token_env": "HF_TOKEN", "retries": 0}}
        for name in ("evil", "quiet_run"):
            save_run(tmp_path / name, str(tmp_path / "data"), 1)
        hostile = yaml.safe_load((tmp_path / "evil/config.yaml").read_text()) | {
            **{"reward_class": reward, "model_path": "stranger/model", "ref_model": "stranger/model"},
            **{
                "trust_remote_code": True,
                "allow_pickle_weights": True,
                "env": {"args": {"data_path": "stranger/data"}},
            },
        }
        for folder in ("evil", "evil/agent"):
            (tmp_path / folder / "config.yaml").write_text(yaml.safe_dump(hostile))
        (tmp_path / "evil/metrics.jsonl").write_text('{"iteration": 1, "objective/score": 0.5}\n')
        acts = {"format_version": 1, "domain_name": "x", "domain_hash": "0", "domain": "restaurant", "error_rate": 0.0}
        acts |= {"user": "friendly", "max_turns": 5, "policy": {"id": "random", "args": {}}}
        for name, environment in (("acts", {"id": "corpus", "args": {"data_path": "stranger/data"}}), ("quiet", None)):
            (tmp_path / name / "agent").mkdir(parents=True)
            (tmp_path / name / "agent/policy_agent.json").write_text(json.dumps(acts | {"environment": environment}))
        shutil.copytree(tmp_path / "evil", tmp_path / "talks")
        shutil.copytree(tmp_path / "evil", tmp_path / "linked")
        (tmp_path / "linked/config.yaml").unlink()
        (tmp_path / "linked/config.yaml").symlink_to(tmp_path / "evil/config.yaml")
        shutil.copytree(tmp_path / "evil", tmp_path / "coded")
        with_code(tmp_path / "coded/agent", tmp_path / "went_off")
        user = {
            "id": "language_model_user",
            "args": {"model": "stranger/model", "openings": str(tmp_path / "secret.txt")},
        }
        talks = {"model_path": "m", "environment": user}
        (tmp_path / "talks/config.yaml").write_text(yaml.safe_dump(talks))
        own = {
            "model_path": "evil/agent",
            "env": {"args": {"data_path": "data"}},
            "reward_class": {"id": "LengthMatch"},
        }
        own |= {
            "rollout_batch_size": 2,
            "max_new_tokens": 4,
            "max_prompt_length": 60,
            "max_iterations": 1,
            "run_dir": "out",
        }
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
        tmp_path.joinpath("out").mkdir()
        yield Place(tmp_path, server, hub_server)


class Place:
    """The working folder and the servers."""

    def __init__(self, folder, server, hub):
        self.folder, self.server, self.hub = folder, server, hub

    @property
    def asked(self):
        return [*self.server.requests, *self.hub.requests]

    def written(self):
        """Files outside of the output, and their contents."""
        kept = (path for path in self.folder.rglob("*") if path.is_file() and "hub_cache" not in path.parts)
        return {str(path): path.read_bytes() for path in kept if path.relative_to(self.folder).parts[0] not in OUTPUTS}


COMMANDS = {
    "evaluate": "--agent evil/agent --data_path data --output out/e.json --max_prompts 2",
    "evaluate of its data": "--agent evil/agent --output out/e.json --max_prompts 2",
    "evaluate of a link": "--agent linked/agent --data_path data --output out/e.json --max_prompts 2",
    "evaluate of its code": "--agent coded/agent --data_path data --output out/e.json --trust_config",
    "evaluate with a baseline": "--agent quiet_run/agent --baseline evil/agent --output out/e.json --max_prompts 2",
    "chat": "--agent evil/agent",
    "chat of its code": "--agent coded/agent",
    "train": "--config own.yaml --experiment_name new",
    "train with its critic": "--config own.yaml --experiment_name new --critic_path evil/agent --use_share_model false",
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
}
OTHERS = {  # tests/commands/test_found_folders.py has the first, tests/models/test_network.py what the second loads
    *("feedback learn", "feedback serve"),
    # these open no folder of a stranger
    *("audit", "benchmark", "doctor", "schema", "train-policy", "train-relevance-model", "write-dialogues"),
    *(f"feedback {name}" for name in ("backup", "export", "forget", "import", "rollback", "status")),
}
CONTROLS = {
    "evaluate": "--agent evil/agent --data_path data --output out/e.json --max_prompts 2 --trust_config",
    "evaluate of its data": "--agent evil/agent --output out/e.json --max_prompts 2 --trust_config",
    "train": "--config evil/config.yaml --experiment_name new --run_dir out",
    "export": None,  # tests/commands/test_export.py: it needs a checkpoint
    "evaluate-policy": "--agent acts/agent --dialogues 1 --output out/e.json --trust_config",
    "evaluate-policy of a language model": "--agent talks/agent --dialogues 1 --output out/e.json --trust_config",
}


def command_of(name):
    return name.partition(" of ")[0].partition(" with ")[0]


def words_of(name, text):
    return [*command_of(name).split(), *text.split()]


def test_every_command_is_in_the_table():
    commands = [
        *(name for name in COMMANDS_BY_NAME if name != "feedback"),
        *(f"feedback {name}" for name in SUBCOMMANDS),
    ]
    assert sorted(commands) == sorted({*map(command_of, COMMANDS), *OTHERS})


def code_of(words):
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_asked_shown_or_written_elsewhere(place, name, capfd):
    before = place.written()
    code = code_of(words_of(name, COMMANDS[name]))
    said = "".join(capfd.readouterr())
    assert code in (0, 2), said
    assert place.asked == []
    outputs = [path.read_bytes() for path in (place.folder / "out").rglob("*") if path.is_file()]
    assert not any(secret.encode() in text for secret in (SECRET, MARKER) for text in [said.encode(), *outputs])
    assert place.written() == before


@pytest.mark.parametrize("name", [name for name, words in CONTROLS.items() if words])
def test_trusted_it_is_asked(place, name, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)  # the Hub's library asks again, and waits
    code_of(words_of(name, CONTROLS[name]))
    assert place.asked != []


def test_a_run_that_goes_on_has_the_users_own_settings(place):
    train = ["train", "--config", "own.yaml", "--experiment_name", "new"]
    assert main(train) == 0
    hostile = (place.folder / "evil/config.yaml").read_bytes()
    for path in (place.folder / "out/new").rglob("config.yaml"):
        path.write_bytes(hostile)
    for state in (place.folder / "out/new/checkpoints").glob("iter_*/trainer.json"):  # a stranger makes the hashes fit
        kept = {key: v for key, v in json.loads(state.read_text()).items() if key not in ("files", "sizes", "sha256")}
        state.write_text(json.dumps(kept))
    assert main([*train, "--resume", "--max_iterations", "2"]) == 0
    assert main([*train[:-1], "other", "--resume_weights_only", "out/new"]) == 0
    assert place.asked == []
