"""A fixture of tests/parts for configurations."""

from yaml_files import write  # noqa: F401
