"""Fixtures of tests/parts for feedback."""

from months import month_inputs  # noqa: F401
