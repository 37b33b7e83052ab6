"""Fixtures of tests/parts for where models are, and for what launchers start."""

from tests.parts.cuda_generators import cuda_generators  # noqa: F401
from tests.parts.judges import judges  # noqa: F401
