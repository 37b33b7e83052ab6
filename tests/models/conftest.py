"""Fixtures of tests/parts for model folders."""

from poisoned import folder, went_off  # noqa: F401
