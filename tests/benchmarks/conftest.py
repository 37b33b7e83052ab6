"""Fixtures of tests/parts for the speed benchmarks."""

from benchmark_inputs import registered, small_tokenizer, tokenizer  # noqa: F401
