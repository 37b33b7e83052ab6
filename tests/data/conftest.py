"""Fixtures of tests/parts for data."""

from hub_answers import forget, online  # noqa: F401
from hub_server import hub_server  # noqa: F401
