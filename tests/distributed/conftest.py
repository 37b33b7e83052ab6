"""Fixtures of tests/parts for where models are, and for what launchers start."""

from cuda_generators import cuda_generators  # noqa: F401
from judges import judges  # noqa: F401
