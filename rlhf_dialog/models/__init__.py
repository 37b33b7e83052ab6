"""The language model: load, pack, generate, answer."""
