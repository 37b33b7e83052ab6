"""Simulated users beside real ones: how long they talk, what they say, how varied, and whether a classifier recognises them.

`python -m experiments.users --data_path data/camrest --users agenda corpus --output users.json`: minutes; with a language model
as the user, an hour. The results: experiments/results/simulated_users.md.

The classifier is scikit-learn's logistic regression, which the package does not need: `pip install -e ".[dev]"`.
"""
