"""What a folder of somebody else names is not obeyed: no class with its arguments, no file outside of it, no question to the Hub.

Each case has its control: with --trust_config the same command does what the folder asks for.
"""

import json
import sys

import pytest
import yaml

from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.feedback.commands.feedback import main as feedback
from rlhf_dialog.task_oriented.commands.evaluate_policy import main as evaluate_policy

SECRET = "the sentence that must not be shown"


class Witness:
    """A class of the user's own, built with the stranger's arguments."""

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
    """The names that the Hub was asked for."""
    names = []

    def ask(name, *_args, **_keys):
        names.append(name)
        raise OSError("there is no Hub here")

    monkeypatch.setattr("rlhf_dialog.data.sources.from_hub.rows_of_hub", ask)
    monkeypatch.setattr("huggingface_hub.snapshot_download", ask)
    monkeypatch.setattr("datasets.load_dataset", ask)
    return names


def policy_agent(folder, **keys):
    """A stranger's agent that chooses acts."""
    known = {
        "format_version": 1,
        "domain_name": "restaurant",
        "domain_hash": "0",
        "domain": "restaurant",
        "error_rate": 0.0,
    }
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
        assert (code, f"{domain}: 'name' is missing" in said) == (2, True)
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
