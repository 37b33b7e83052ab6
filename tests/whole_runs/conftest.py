"""Whole runs: `make test-whole` runs what lies here."""

from pathlib import Path

import pytest
from browsers import browser  # noqa: F401  a fixture
from devices import deterministic, device  # noqa: F401  fixtures
from handlers import handlers  # noqa: F401
from own_networks import own_networks  # noqa: F401
from ppo_runs import refused, rewards, run, world  # noqa: F401  fixtures
from prices import price  # noqa: F401  a fixture
from rank_runs import ppo  # noqa: F401  a fixture


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.whole_run)
