"""The PPO loop, its mathematics, the supervised stages."""
