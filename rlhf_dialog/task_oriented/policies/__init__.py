"""Dialogue policies at act level, one file each: from beliefs to summary actions.

- **A policy sees what a learner sees**: observations (N, D) and masks (N, A), never the belief behind them. The handcrafted
  policy reads the observation through `world.summary.Layout`, so that it can be imitated.
- **A policy is a class of five methods** (`base.DialoguePolicy`), registered by name.
- **PPO is that of the language models** (`training/ppo.py`): an episode is a row, a turn is a token.
"""
