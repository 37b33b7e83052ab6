"""Fixtures of tests/parts for data."""

from tests.parts.hub_answers import forget, online  # noqa: F401
from tests.parts.hub_server import hub_server  # noqa: F401
