"""Thirty simulated days: scripted people talk to a bot by day and judge its answers, and it learns every night.

`make month`, or `python -m experiments.month [--config month.yaml] [--key value ...]`: about 10 minutes. KEYS.md has the keys;
`--troll_study` is pairs of months with and without a person of wrong ratings. The results: experiments/results/month.md.
"""
