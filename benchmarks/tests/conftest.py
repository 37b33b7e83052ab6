"""Offline and with one thread, as in tests/conftest.py; the fixtures of the speed benchmarks."""

from tests.parts import offline  # noqa: F401  before torch

# isort: split
from benchmarks.tests.inputs import registered, small_tokenizer, tokenizer  # noqa: F401
