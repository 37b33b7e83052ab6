"""How fast: programs that measure training beside a peer or a matrix product, and the results of earlier runs (JSON)."""
