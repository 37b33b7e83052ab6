"""Examples that are more than a script."""
