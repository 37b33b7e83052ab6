"""A fixture of tests/parts for where models are."""

from judges import judges  # noqa: F401
