"""What is copied of an agent: links out of its folder are not followed, those of the Hub's cache to its blobs are."""

import pytest

from rlhf_dialog.feedback.commands.feedback import main as feedback
from rlhf_dialog.feedback.store.bot import Bot

SECRET = "the sentence that must not be shown"


def outcome(command, capsys, *words):
    code = command([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out + said.err


@pytest.fixture
def copied(tmp_path):
    """An agent's folder with a link out of it, one inside, and what the Hub's cache looks like."""
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    agent = tmp_path / "stranger"
    agent.mkdir()
    for name in ("config.json", "rlhf_dialog.json", "model.safetensors"):
        (agent / name).write_text("{}")
    (agent / "notes.txt").symlink_to(secret)
    (agent / "inside.txt").symlink_to(agent / "config.json")
    return agent


def test_links_that_leave_an_agents_folder_are_not_copied(tmp_path, capsys, copied):
    code, said = outcome(feedback, capsys, "init", "--run", tmp_path / "bot", "--agent", copied)
    assert code == 0
    assert f"{copied / 'notes.txt'}: is a link that leaves the agent's folder" in said
    made = Bot(tmp_path / "bot").agent_folder("0001")
    assert {path.name for path in made.iterdir()} == {
        "config.json",
        "rlhf_dialog.json",
        "model.safetensors",
        "inside.txt",
    }
    assert not any(SECRET in path.read_text() for path in made.iterdir())


def test_links_to_the_blobs_of_the_hubs_cache_are_followed(tmp_path, capsys, copied):
    model = tmp_path / "hub" / "models--somebody--model"
    (model / "blobs").mkdir(parents=True)
    snapshot = model / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "rlhf_dialog.json", "model.safetensors"):
        (model / "blobs" / name).write_text("{}")
        (snapshot / name).symlink_to(model / "blobs" / name)
    (snapshot / "notes.txt").symlink_to(tmp_path / "secret.txt")
    code, said = outcome(feedback, capsys, "init", "--run", tmp_path / "bot", "--agent", snapshot)
    assert code == 0
    assert {path.name for path in Bot(tmp_path / "bot").agent_folder("0001").iterdir()} == {
        "config.json",
        "rlhf_dialog.json",
        "model.safetensors",
    }
    assert "notes.txt" in said
