"""Fixtures of whole runs."""

from tests.parts.browsers import browser  # noqa: F401  a fixture
from tests.parts.handlers import handlers  # noqa: F401
from tests.parts.own_networks import own_networks  # noqa: F401
from tests.parts.ppo_runs import refused, rewards, run, world  # noqa: F401  fixtures
from tests.parts.prices import price  # noqa: F401  a fixture
from tests.parts.rank_runs import ppo  # noqa: F401  a fixture
from tests.parts.servers import no_proxy  # noqa: F401  a fixture
