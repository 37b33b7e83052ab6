"""Fixtures of the tests of blind reading."""

from tests.parts.browsers import browser  # noqa: F401  a fixture
