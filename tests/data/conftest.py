"""Fixtures of tests/parts for data."""

from hub_answers import forget, online  # noqa: F401
