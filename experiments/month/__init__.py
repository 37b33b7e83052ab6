"""Thirty simulated days: people talk to a bot, and it learns every night."""
