"""Loading from a folder or the Hub: what is local, one clear error, and no waiting when the Hub cannot be reached."""

import socket
import urllib.error
import urllib.request

import pytest
from hub_answers import answer
from huggingface_hub import constants

from rlhf_dialog.data import hub

pytestmark = pytest.mark.usefixtures("forget")


def test_offline_by_setting_asks_nobody(monkeypatch):
    asked = answer(monkeypatch, AssertionError("asked"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not hub.hub_reachable()
    assert asked == []


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


def test_what_can_only_be_a_place_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "gpt2").mkdir()
    for path in ("./x", "../x", "/x/y", "~/x", "a/b/c", "x/", "data.jsonl", "gpt2", "models", "models/absent"):
        assert hub.is_local(path), path
    for path in ("distilgpt2", "someone/model", "daily_dialog"):
        assert not hub.is_local(path), path
