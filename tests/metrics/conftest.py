"""Fixtures of tests/parts for metrics."""

from tests.parts.wordnets import no_wordnet, wordnet_folder  # noqa: F401
