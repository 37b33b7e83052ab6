"""A fixture of tests/parts for configurations."""

from configs import write  # noqa: F401
