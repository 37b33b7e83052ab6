"""Loading from a folder or the Hub: what is local, one clear error, and no waiting when the Hub cannot be reached."""

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from huggingface_hub import constants

from rlhf_dialog.data import hub
from rlhf_dialog.errors import UserError
from tests.parts.hub_answers import answer
from tests.parts.hub_server import Repo

pytestmark = pytest.mark.usefixtures("forget")


@pytest.mark.parametrize(
    ("result", "reachable"),
    [
        (urllib.error.URLError(socket.gaierror("no such host")), False),
        (urllib.error.URLError(ConnectionRefusedError()), False),
        (TimeoutError(), False),
        (ConnectionResetError(), False),
        (urllib.error.HTTPError("u", 503, "busy", {}, None), True),  # type: ignore[arg-type]
    ],
)
def test_reachable_is_asked_once(online, monkeypatch, result, reachable):
    asked = answer(monkeypatch, result)
    assert [hub.hub_reachable() for _ in range(3)] == [reachable] * 3
    assert len(asked) == 1
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.hub_reachable.cache_clear()
    assert not hub.hub_reachable()
    assert len(asked) == 1


def test_what_can_only_be_a_place_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "gpt2").mkdir()
    written = ("./x", "../x", "/x/y", "~/x", "a/b/c", "x/", "data.jsonl", "runs/a")
    for path in (*written, "gpt2", "models", "models/absent"):
        assert hub.is_local(path), path
    with pytest.raises(UserError, match="model_path: no such folder: 'runs/a'"):
        hub.check_folder("runs/a", "model_path")
    for path in ("gpt2", "someone/model"):
        hub.check_folder(path, "model_path")
    for path in ("distilgpt2", "someone/model", "daily_dialog"):
        assert not hub.is_local(path), path


# a model by its name


def published(hub_server, **files: bytes) -> None:
    hub_server.repos["ada/polite"] = Repo()
    weights = {"model.safetensors": b"w", "pytorch_model.bin": b"x", "a/b.safetensors": b"x"}
    named = {"config.json": b"{}", "evil.py": b"x", **weights}
    hub_server.repos["ada/polite"].commit({**named, **files})


def names_in(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


def test_a_model_is_fetched_without_pickles_and_code(hub_server):
    published(hub_server)
    names = {"config.json", "model.safetensors"}
    assert names_in(hub.model_folder("ada/polite", "--agent")) == names
    assert names_in(hub.model_folder("ada/polite", "--agent", with_code=True)) == {*names, "evil.py"}


def test_a_folder_of_that_name_is_preferred(hub_server, tmp_path, monkeypatch):
    published(hub_server)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ada" / "polite").mkdir(parents=True)
    assert hub.model_folder("ada/polite", "--agent") == "ada/polite"
    assert hub.model_folder("./nowhere", "--agent") == "./nowhere"
    assert hub_server.requests == []


def test_offline_the_copy_of_an_earlier_download_is_used(hub_server, monkeypatch):
    published(hub_server)
    folder = hub.model_folder("ada/polite", "--agent")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub.hub_reachable.cache_clear()
    hub_server.requests.clear()
    assert hub.model_folder("ada/polite", "--agent") == folder
    with pytest.raises(UserError, match="--agent: 'ada/other' is no folder here, and not read from the Hub"):
        hub.model_folder("ada/other", "--agent")
    assert hub_server.requests == []


@pytest.mark.parametrize("name", ["ada/other", "a--b", ""])
def test_a_name_that_nobody_has(name, hub_server):
    with pytest.raises(UserError, match=f"--baseline: '{name}' is no folder here, and not read from the Hub"):
        hub.model_folder(name, "--baseline")
