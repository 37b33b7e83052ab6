"""A fixture of tests/parts for configurations."""

from tests.parts.yaml_files import write  # noqa: F401
