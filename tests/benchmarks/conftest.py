"""Fixtures of tests/parts for the speed benchmarks."""

from tests.parts.benchmark_inputs import registered, small_tokenizer, tokenizer  # noqa: F401
