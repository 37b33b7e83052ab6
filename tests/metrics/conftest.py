"""Fixtures of tests/parts for metrics."""

from wordnets import no_wordnet, wordnet_folder  # noqa: F401
