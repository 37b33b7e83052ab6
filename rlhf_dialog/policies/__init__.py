"""Dialogue policies at act level: from beliefs to summary actions.

- **A policy sees what a learner sees**: observations (N, D) and masks (N, A), never the belief behind them. The handcrafted
  policy reads the observation through `environments.observations.Layout`, so that it can be imitated.
"""
