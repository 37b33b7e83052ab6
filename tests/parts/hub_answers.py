"""A Hub that answers as a test says: the fixtures `forget` and `online`."""

import urllib.error
import urllib.request

import pytest
from huggingface_hub import constants

from rlhf_dialog.data import hub


@pytest.fixture
def forget():
    """`hub_reachable` remembers its answer for the life of the process."""
    hub.hub_reachable.cache_clear()
    yield
    hub.hub_reachable.cache_clear()


@pytest.fixture
def online(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def answer(monkeypatch, result):
    """Let the next request to the Hub end with `result`, and count the requests."""
    asked = []

    def urlopen(request, timeout):
        asked.append(request.full_url)
        assert timeout <= 5
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked
