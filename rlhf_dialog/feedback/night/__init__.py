"""The night: what is learned from the examples, whom to trust, and the gate that decides about promotion."""
