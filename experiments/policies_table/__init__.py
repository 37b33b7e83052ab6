"""The command `benchmark-policies`: each policy, error rate and seed in one table."""
